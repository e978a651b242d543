package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/internal/config"
)

const configHelp = `Show the settings that all commands share, and where each comes from; secrets are hidden.

A flag wins over the environment, the environment over the file given with -c (or CAPSTAN_CONFIG), the
file over the default. The file is YAML; an unknown or duplicate key is an error with its line:

`

func newConfigCmd(env *environ) *cobra.Command {
	cmd := newGroup("config", "show and check the configuration", `  capstan config show
  capstan config check -c capstan.yaml`)
	cmd.Long = configHelp + config.Sample()
	cmd.AddCommand(newConfigShowCmd(env), newConfigCheckCmd(env))
	return cmd
}

func newConfigShowCmd(env *environ) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "print each setting with its value and its source",
		Example: `  capstan config show
  CAPSTAN_LOG_LEVEL=debug capstan config show --output json`,
		Args: exactArgs(0, ""),
		RunE: func(*cobra.Command, []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			return showConfig(env, output)
		},
	}
	cmd.Flags().StringVar(&output, "output", outputText, "text or json")
	return cmd
}

// setting is one line of config show.
type setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

func showConfig(env *environ, output string) error {
	s := env.settings
	list := []setting{
		{"uri", config.Redact(s.URI.Text), s.URI.Source}, // I10
		{"log.level", s.LogLevel.Text, s.LogLevel.Source},
		{"log.format", s.LogFormat.Text, s.LogFormat.Source},
		{"color", s.Color.Text, s.Color.Source},
	}
	if output == outputJSON {
		enc := json.NewEncoder(env.stdout)
		enc.SetEscapeHTML(false)
		for _, l := range list {
			if err := enc.Encode(l); err != nil {
				return stdoutErr(err)
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	for _, l := range list {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", l.Key, l.Value, l.Source) // Flush reports
	}
	return stdoutErr(w.Flush())
}

func newConfigCheckCmd(env *environ) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "check flags, environment and file without connecting; code 3 on an error",
		Example: `  capstan config check -c capstan.yaml
  CAPSTAN_URI=mongodb://db1,db2,db3/?replicaSet=rs capstan config check`,
		Args: exactArgs(0, ""),
		RunE: func(*cobra.Command, []string) error {
			if _, err := env.clientOptions(); err != nil {
				return err
			}
			env.note("the configuration is good")
			return nil
		},
	}
}
