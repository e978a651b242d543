package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release and commit are set by the linker: -ldflags "-X main.release=v1.2.3 -X main.commit=…".
var release, commit string

// build says what this binary is made of.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	Driver  string `json:"driver"`
}

func buildInfo() build {
	b := build{Version: release, Commit: cmp.Or(commit, "unknown"), Go: runtime.Version(), Driver: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && commit == "" {
			b.Commit = s.Value
		}
	}
	for _, d := range info.Deps {
		if d.Path == "go.mongodb.org/mongo-driver/v2" {
			b.Driver = d.Version
		}
	}
	return b
}

func version() string { return buildInfo().Version }

func newVersionCmd(env *environ) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print version, commit, Go version and driver version",
		Example: `  capstan version
  capstan version --output json`,
		Args: exactArgs(0, ""),
		// Needs no settings: it must work with a broken configuration too.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(*cobra.Command, []string) error {
			b := buildInfo()
			switch output {
			case "text":
				_, err := fmt.Fprintf(env.stdout, "capstan %s\ncommit  %s\ngo      %s\ndriver  %s\n", b.Version, b.Commit, b.Go, b.Driver)
				return stdoutErr(err)
			case "json":
				return stdoutErr(json.NewEncoder(env.stdout).Encode(b))
			}
			return usageError("--output is text or json, not %q", output)
		},
	}
	cmd.Flags().StringVar(&output, "output", "text", "text or json")
	return cmd
}
