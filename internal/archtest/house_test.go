package archtest

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	maxFunctionLines = 70
	maxFileLines     = 500
	// maxLongFunctions is the share of functions that may be longer, for tables and switches.
	maxLongFunctions = 0.05
)

// wires reports whether a package is one that may use process-wide state: the command, and what runs
// as an experiment or test.
func wires(s source) bool {
	return s.test || slices.Contains([]string{"cmd/capstan", "e2e", "experiment", "internal/mongotest"}, s.pkg) || strings.HasSuffix(s.pkg, "test")
}

func TestLibrariesTouchNoGlobalState(t *testing.T) {
	forbidden := map[string]string{
		"time.Sleep":         "wait on a timer and the context",
		"context.Background": "take the caller's context, or context.WithoutCancel with a timeout",
		"context.TODO":       "take the caller's context",
		"os.Stdout":          "output belongs to the command",
		"os.Exit":            "return an error",
		"os.Getenv":          "settings come in by Config (localcluster.Find is the exception)",
	}
	for _, s := range sources(t) {
		if wires(s) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			name := x.Name + "." + sel.Sel.Name
			if name == "os.Getenv" && s.pkg == "localcluster" {
				return true
			}
			if why, bad := forbidden[name]; bad {
				t.Errorf("%s: %s: %s", s.fset.Position(n.Pos()), name, why)
			}
			return true
		})
		for _, path := range s.imports() {
			if path == "github.com/rs/zerolog/log" || path == "log" || path == "log/slog" {
				t.Errorf("%s imports %s: the logger comes in by Config", s.path, path)
			}
		}
	}
}

func TestThereIsNoInitAndNoContextInAStruct(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s: init(): wiring belongs to main", s.fset.Position(n.Pos()))
				}
			case *ast.StructType:
				for _, f := range n.Fields.List {
					if sel, ok := f.Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "Context" {
						t.Errorf("%s: a context in a struct: pass it", s.fset.Position(f.Pos()))
					}
				}
			}
			return true
		})
	}
}

func TestErrorsAreNotMatchedByTheirText(t *testing.T) {
	byText := regexp.MustCompile(`strings\.(Contains|HasPrefix|HasSuffix|EqualFold)\((err|e)\.Error\(\)`)
	for _, s := range sources(t) {
		if s.test || s.pkg == "internal/mongoerr" {
			continue
		}
		if m := byText.FindString(s.text); m != "" {
			t.Errorf("%s: %s: use errors.Is, errors.As or internal/mongoerr", s.path, m)
		}
	}
}

func TestFunctionsAndFilesStayReadable(t *testing.T) {
	var all, long int
	var offenders []string
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		if n := strings.Count(s.text, "\n"); n > maxFileLines {
			t.Errorf("%s has %d lines, more than %d: is there a second thing inside?", s.path, n, maxFileLines)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			all++
			if n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1; n > maxFunctionLines {
				long++
				offenders = append(offenders, s.path+": "+f.Name.Name)
			}
		}
	}
	if float64(long) > maxLongFunctions*float64(all) {
		t.Errorf("%d of %d functions are longer than %d lines:\n%s", long, all, maxFunctionLines, strings.Join(offenders, "\n"))
	}
}

func TestEveryInvariantIsCitedByCodeAndByATest(t *testing.T) {
	doc, err := os.ReadFile("../../docs/INVARIANTS.md")
	if err != nil {
		t.Fatal(err)
	}
	numbered := regexp.MustCompile(`(?m)^## (I\d+)\b.*$`).FindAllStringSubmatch(string(doc), -1)
	if len(numbered) != 10 {
		t.Fatalf("docs/INVARIANTS.md numbers %d promises, want 10", len(numbered))
	}
	for _, m := range numbered {
		if strings.Contains(m[0], "(not yet)") {
			continue // promised for a feature that is not there
		}
		cite := regexp.MustCompile(`\b` + m[1] + `\b`)
		var code, tests bool
		for _, s := range sources(t) {
			if s.pkg == "internal/archtest" || !cite.MatchString(s.text) {
				continue
			}
			code, tests = code || !s.test, tests || s.test
		}
		if !code || !tests {
			t.Errorf("%s is cited by code: %v, by a test: %v; want both", m[1], code, tests)
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.file.Name.Name == "main" {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil && !wellKnown[d.Name.Name] {
					t.Errorf("%s: %s has no comment", s.fset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					ts, ok := spec.(*ast.TypeSpec)
					if ok && ts.Name.IsExported() && d.Doc == nil && ts.Doc == nil {
						t.Errorf("%s: type %s has no comment", s.fset.Position(ts.Pos()), ts.Name.Name)
					}
				}
			}
		}
	}
}

// wellKnown are methods whose contract is that of the interface they implement.
var wellKnown = map[string]bool{"Error": true, "Unwrap": true, "Is": true, "String": true, "Write": true, "Read": true}

func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}
