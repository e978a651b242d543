package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// composeFast and composeDefault are the two ways to call docker compose: its files, in their order.
var (
	composeFast    = []string{"docker-compose.yml"}
	composeDefault = []string{"docker-compose.yml", "docker-compose.default.yml"}
)

// composeProject is the part of a Compose project that the tests look at.
type composeProject struct {
	Networks map[string]any            `json:"networks"`
	Volumes  map[string]any            `json:"volumes"`
	Services map[string]composeService `json:"services"`
}

type composeService struct {
	Image     string         `json:"image"`
	Container string         `json:"container_name"`
	Command   []string       `json:"command"`
	Profiles  []string       `json:"profiles"`
	Networks  map[string]any `json:"networks"`
	Env       composeEnv     `json:"environment"`
	Volumes   []struct {
		Source string `json:"source"`
		Target string `json:"target"`
	} `json:"volumes"`
	DependsOn map[string]struct {
		Condition string `json:"condition"`
	} `json:"depends_on"`
	Health *struct {
		Test []string `json:"test"`
	} `json:"healthcheck"`
}

// composeEnv is a service's environment, which the loader writes as a list where files were merged.
type composeEnv map[string]string

func (e *composeEnv) UnmarshalJSON(b []byte) error {
	var list []string
	if json.Unmarshal(b, &list) != nil {
		return json.Unmarshal(b, (*map[string]string)(e))
	}
	*e = composeEnv{}
	for _, line := range list {
		name, value, _ := strings.Cut(line, "=")
		(*e)[name] = value
	}
	return nil
}

// loadCompose reads Compose files as Docker Compose does: the Compose project's own loader validates them against the
// specification's schema, follows anchors, fills in variables and merges the files.
func loadCompose(ctx context.Context, files ...string) (composeProject, error) {
	args := append([]string{"tool", "-modfile=tools/go.mod", "github.com/compose-spec/compose-go/v2/cmd", "--format", "json"}, files...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return composeProject{}, fmt.Errorf("load %v: %w: %s", files, err, stderr.String())
	}
	var p composeProject
	if err := json.Unmarshal(out, &p); err != nil {
		return p, fmt.Errorf("read what %v say: %w", files, err)
	}
	return p, p.check()
}

// check looks for names of what is not there, which the loader leaves to the engine.
func (p composeProject) check() error {
	for name, s := range p.Services {
		for other, dep := range s.DependsOn {
			of, ok := p.Services[other]
			if !ok {
				return fmt.Errorf("%s depends on %s, which is not there", name, other)
			}
			if dep.Condition == "service_healthy" && of.Health == nil {
				return fmt.Errorf("%s waits for the health of %s, which has no check", name, other)
			}
		}
		for network := range s.Networks {
			if _, ok := p.Networks[network]; !ok {
				return fmt.Errorf("%s is on network %s, which is not there", name, network)
			}
		}
		for _, v := range s.Volumes {
			if _, ok := p.Volumes[v.Source]; !ok {
				return fmt.Errorf("%s mounts volume %s, which is not there", name, v.Source)
			}
		}
	}
	return nil
}

func mustLoadCompose(t *testing.T, files ...string) composeProject {
	t.Helper()
	p, err := loadCompose(within(t), files...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var composeMembers = []string{"m0", "m1", "m2"}

func TestTheComposeFilesAreValid(t *testing.T) {
	t.Parallel()
	image := regexp.MustCompile(`^mongo:\d+\.\d+\.\d+$`)
	for _, files := range [][]string{composeFast, composeDefault} {
		p := mustLoadCompose(t, files...)
		if got := slices.Sorted(maps.Keys(p.Services)); !slices.Equal(got, []string{"init", "m0", "m1", "m2", "plain", "reader", "writer"}) {
			t.Fatalf("%v: services %v", files, got)
		}
		for _, name := range append([]string{"init"}, composeMembers...) {
			if !image.MatchString(p.Services[name].Image) {
				t.Errorf("%v: %s runs %s, which is not pinned to a patch version", files, name, p.Services[name].Image)
			}
		}
		for _, name := range composeMembers {
			// The documented commands name the containers so; the data outlives a container.
			if s := p.Services[name]; s.Container != "capstan-"+name || len(s.Volumes) != 1 || s.Volumes[0].Source != name || s.Volumes[0].Target != "/data/db" {
				t.Errorf("%v: %s: %+v", files, name, s)
			}
		}
	}
}

// What the check above is worth: each of these mistakes is found.
func TestMistakesInAComposeFileAreFound(t *testing.T) {
	t.Parallel()
	good := readFile(t, filepath.Join("..", "docker-compose.yml"))
	dir := t.TempDir()
	for name, replace := range map[string][2]string{
		"unknown key":       {"container_name: capstan-m1", "container_nam: capstan-m1"},
		"unknown condition": {"service_completed_successfully", "service_completed"},
		"unknown service":   {"m2: {condition", "m3: {condition"},
		"unknown network":   {"networks: [set]", "networks: [sett]"},
		"unknown volume":    {`["m2:/data/db"]`, `["m3:/data/db"]`},
		"no health check":   {"healthcheck:", "x-healthcheck:"},
	} {
		bad := strings.Replace(good, replace[0], replace[1], 1)
		if bad == good {
			t.Fatalf("%s: %q is not in the file", name, replace[0])
		}
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".yml")
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadCompose(within(t), path); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// composeSet are the members of a Compose project, run on this machine.
type composeSet struct {
	p     composeProject
	addrs map[string]string // of "m0:27017" and so on
}

// hosts writes this machine's addresses into s, in place of the containers'.
func (c composeSet) hosts(s string) string {
	for name, addr := range c.addrs {
		s = strings.ReplaceAll(s, name, addr)
	}
	return s
}

// runMembers starts each named member with its own command line, except where it listens and where its data is.
func runMembers(t *testing.T, p composeProject, names ...string) composeSet {
	t.Helper()
	mongod := mongotest.Mongod(t)
	c := composeSet{p: p, addrs: map[string]string{}}
	for _, name := range names {
		port := freePort(t)
		c.addrs[name+":27017"] = "127.0.0.1:" + port
		s := p.Services[name]
		if len(s.Command) == 0 || s.Command[0] != "mongod" {
			t.Fatalf("%s runs %v", name, s.Command)
		}
		var args []string
		for _, a := range s.Command[1:] {
			switch a {
			case "27017":
				a = port
			case "--bind_ip_all":
				a = "--bind_ip=127.0.0.1"
			}
			args = append(args, a)
		}
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), mongod, append(args, "--dbpath", t.TempDir(), "--nounixsocket")...)
		var log lockedBuffer
		cmd.Stdout, cmd.Stderr = &log, &log
		bind(cmd)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
		check := s.Health.Test
		if len(check) < 2 || check[0] != "CMD" {
			t.Fatalf("%s: health check %v", name, check)
		}
		eventually(t, name+" to be healthy", func() bool {
			select {
			case <-ended:
				t.Fatalf("%s: mongod does not take %v:\n%s", name, args, log.String())
			default:
			}
			last := len(check) - 1
			probe := append(slices.Clone(check[1:last]), strings.ReplaceAll(check[last], "27017", port))
			return exec.CommandContext(t.Context(), probe[0], probe[1:]...).Run() == nil
		})
	}
	return c
}

// freePort returns a port below the kernel's range for outgoing connections, as localcluster does.
func freePort(t *testing.T) string {
	t.Helper()
	for range 50 {
		port := fmt.Sprint(20000 + rand.IntN(12000))
		if l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return ""
}

// admin runs a command on one server.
func admin(t *testing.T, uri string, cmd bson.D) (bson.Raw, error) {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	return client.Database("admin").RunCommand(within(t), cmd).Raw()
}

// initiateDocument returns the document that the init service initiates the set with.
func initiateDocument(t *testing.T, p composeProject) string {
	t.Helper()
	c := p.Services["init"].Command
	if len(c) != 5 || c[0] != "mongosh" || c[3] != "--eval" {
		t.Fatalf("init runs %q", c)
	}
	return between(t, c[4], "const config = ", ";\n")
}

// setConfig returns a set's configuration without what names the set, its members and its history.
func setConfig(t *testing.T, uri string) map[string]any {
	t.Helper()
	raw, err := admin(t, uri, bson.D{{Key: "replSetGetConfig", Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var reply struct {
		Config map[string]any `bson:"config"`
	}
	if err := bson.UnmarshalExtJSON([]byte(raw.String()), false, &reply); err != nil { // plain maps and slices
		t.Fatal(err)
	}
	b, err := json.Marshal(reply.Config)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"_id", "term", "version"} {
		delete(config, key)
	}
	delete(config["settings"].(map[string]any), "replicaSetId")
	for _, m := range config["members"].([]any) {
		delete(m.(map[string]any), "host")
	}
	return config
}

// The members take their command lines, what init says makes a set of them, and it is the set that
// localcluster makes: what was measured there holds here.
func TestTheComposeSetIsTheOneOfLocalcluster(t *testing.T) {
	t.Parallel()
	c := runMembers(t, mustLoadCompose(t, composeFast...), composeMembers...)
	member := "mongodb://" + c.addrs["m0:27017"] + "/?directConnection=true"
	var config bson.D
	if err := bson.UnmarshalExtJSON([]byte(c.hosts(initiateDocument(t, c.p))), false, &config); err != nil {
		t.Fatal(err)
	}
	if _, err := admin(t, member, bson.D{{Key: "replSetInitiate", Value: config}}); err != nil {
		t.Fatal(err)
	}
	uri := c.hosts(c.p.Services["writer"].Env["CAPSTAN_URI"])
	if _, err := admin(t, uri, bson.D{{Key: "ping", Value: 1}}); err != nil { // waits for a primary
		t.Fatal(err)
	}
	reference := mongotest.ReplicaSet(t).Cluster
	if got, want := setConfig(t, uri), setConfig(t, reference.URI()); !reflect.DeepEqual(got, want) {
		t.Errorf("the set is\n%v\nand localcluster's\n%v", got, want)
	}
	ask := bson.D{{Key: "getParameter", Value: 1}, {Key: "oplogNetworkTimeoutBufferSeconds", Value: 1}, {Key: "oplogFetcherSteadyStateMaxFetcherRestarts", Value: 1}}
	got, err := admin(t, member, ask)
	if err != nil {
		t.Fatal(err)
	}
	want, err := admin(t, reference.URI(), ask)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ask[1:] {
		if g, w := got.Lookup(e.Key), want.Lookup(e.Key); !g.Equal(w) {
			t.Errorf("%s is %v, and localcluster's %v", e.Key, g, w)
		}
	}
}

func TestTheComposeMembersRunWithMongoDBsOwnTiming(t *testing.T) {
	t.Parallel()
	p := mustLoadCompose(t, composeDefault...)
	if p.Services["init"].Env["PROFILE"] == "fast" {
		t.Error("init makes a fast set")
	}
	runMembers(t, p, "m0")
	for _, name := range composeMembers {
		if !slices.Equal(p.Services[name].Command, p.Services["m0"].Command) || strings.Contains(fmt.Sprint(p.Services[name].Command), "setParameter") {
			t.Errorf("%s runs %v", name, p.Services[name].Command)
		}
	}
}

// The image is built by a command that works on what the build context holds, and knows its version.
func TestTheDockerfilesBuildCommandWorks(t *testing.T) {
	t.Parallel()
	src, out := t.TempDir(), t.TempDir()
	copyContext(t, src)
	file := readFile(t, filepath.Join("..", "Dockerfile"))
	command := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*)$`).FindStringSubmatch(file)
	if command == nil || !strings.Contains(command[1], "/out/capstan") {
		t.Fatalf("no build command in:\n%s", file)
	}
	// All of the standard library is compiled, where nothing is in the cache, beside everything else that runs here.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", strings.ReplaceAll(command[1], "/out/", out+"/"))
	cmd.Dir, cmd.Env = src, append(os.Environ(), "VERSION=v9.9.9", "COMMIT=0123abc")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command[1], err, b)
	}
	b, err := exec.CommandContext(within(t), filepath.Join(out, "capstan"), "version").Output()
	if err != nil || !strings.Contains(string(b), "v9.9.9") || !strings.Contains(string(b), "0123abc") {
		t.Errorf("version: %v\n%s", err, b)
	}
}

// copyContext copies what the repository holds, less what .dockerignore names, to dir.
func copyContext(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = ".."
	list, err := cmd.Output()
	if err != nil {
		t.Fatalf("list files: %v", err)
	}
	var ignored []string
	for line := range strings.Lines(readFile(t, filepath.Join("..", ".dockerignore"))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			if strings.ContainsAny(line, "*?!/") {
				t.Fatalf(".dockerignore: %q: only plain names at the top are understood here", line)
			}
			ignored = append(ignored, line)
		}
	}
	for name := range strings.SplitSeq(strings.Trim(string(list), "\x00"), "\x00") {
		top, _, _ := strings.Cut(name, "/")
		if slices.Contains(ignored, top) {
			continue
		}
		if err := copyFile(filepath.Join(dir, filepath.FromSlash(path.Clean(name))), filepath.Join("..", filepath.FromSlash(name))); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}

// The clients' command lines are ones that capstan takes, and work on the set.
func TestTheComposeClientsRun(t *testing.T) {
	t.Parallel()
	for _, files := range [][]string{composeFast, composeDefault} {
		p := mustLoadCompose(t, files...)
		uri := mongotest.ReplicaSet(t).Cluster.URI()
		for _, name := range []string{"writer", "reader", "plain"} {
			var out lockedBuffer
			start(t, uri, nil, &out, append(slices.Clone(p.Services[name].Command), "--count", "3")...).wait(t)
			if n := strings.Count(out.String(), "\n"); n < 3 {
				t.Errorf("%v: %s printed %d lines for 3 calls:\n%s", files, name, n, out.String())
			}
		}
	}
}
