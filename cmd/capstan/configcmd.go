package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/internal/config"
)

const configHelp = `Show the settings that all commands share and those of capstan serve, and where each comes from; secrets are hidden.

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
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			d, err := config.LoadDaemon(env.input(cmd))
			if err != nil {
				return err
			}
			return showConfig(env, d, output)
		},
	}
	cmd.Flags().StringVar(&output, "output", outputText, "text or json")
	return cmd
}

func showConfig(env *environ, d config.Daemon, output string) error {
	s := env.settings
	list := append([]config.Setting{
		{Key: "uri", Value: config.Redact(s.URI.Text), Source: s.URI.Source}, // I10
		{Key: "log.level", Value: s.LogLevel.Text, Source: s.LogLevel.Source},
		{Key: "log.format", Value: s.LogFormat.Text, Source: s.LogFormat.Source},
		{Key: "color", Value: s.Color.Text, Source: s.Color.Source},
	}, d.Settings()...)
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
	var empty bool
	return &cobra.Command{
		Use:   "check",
		Short: "check flags, environment and file without connecting, and print all that is wrong; code 3 on an error",
		Example: `  capstan config check -c capstan.yaml
  CAPSTAN_URI=mongodb://db1,db2,db3/?replicaSet=rs capstan config check`,
		Args: exactArgs(0, ""),
		// In place of the root's, which stops at what all commands share: here everything is said at once.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			d, err := config.LoadDaemon(env.input(cmd))
			if err != nil {
				return err
			}
			empty = d.Path != "" && len(d.Routes) == 0
			return env.prepare(cmd)
		},
		RunE: func(*cobra.Command, []string) error {
			if _, err := env.clientOptions(); err != nil {
				return err
			}
			if empty {
				env.note("warning: routes: %s", noRoutes)
			}
			env.note("the configuration is good")
			return nil
		},
	}
}
