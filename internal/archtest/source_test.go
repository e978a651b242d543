package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// module is the import path of the project's root.
const module = "github.com/seed-12ef14e5/capstan"

// source is one parsed Go file of the project.
type source struct {
	path string // from the project's root, with slashes
	pkg  string // the folder, "." for the root
	test bool
	text string
	file *ast.File
	fset *token.FileSet
}

// sources returns every Go file of the project, parsed once.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d Go files found: the walk is broken", len(all))
	}
	return all
}

var parsed = sync.OnceValues(parse)

func parse() ([]source, error) {
	root := filepath.Join("..", "..")
	var all []source
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if name == "testdata" || name == "bin" || (strings.HasPrefix(name, ".") && p != root) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		all = append(all, source{
			path: rel, pkg: path.Dir(rel), test: strings.HasSuffix(name, "_test.go"),
			text: string(text), file: f, fset: fset,
		})
		return nil
	})
	return all, err
}

// imports returns the import paths of a file.
func (s source) imports() []string {
	var paths []string
	for _, i := range s.file.Imports {
		paths = append(paths, strings.Trim(i.Path.Value, `"`))
	}
	return paths
}
