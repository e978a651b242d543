package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/internal/admin"
	"github.com/seed-12ef14e5/capstan/internal/config"
)

const (
	// askTimeout bounds a question to the daemon.
	askTimeout = 15 * time.Second
	// watchEvery is how often --watch asks.
	watchEvery = 2 * time.Second
)

func newStatusCmd(env *environ) *cobra.Command {
	var output string
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show what a running daemon does: phases, lag, copies, dead letters",
		Example: `  capstan status
  capstan status --watch
  capstan status --admin unix:/run/capstan/admin.sock --output json | jq '.routes[].lag_seconds'`,
		Args: exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			address, err := adminAddress(env, cmd)
			if err != nil {
				return err
			}
			return showStatus(cmd.Context(), env, admin.NewClient(address), output, watch)
		},
	}
	addAdminFlag(cmd)
	cmd.Flags().StringVar(&output, "output", outputText, "text or json")
	cmd.Flags().BoolVar(&watch, "watch", false, "ask again every 2 s until Ctrl-C (json: an object per line)")
	return cmd
}

// addAdminFlag adds what says where the daemon is. adminAddress reads it.
func addAdminFlag(cmd *cobra.Command) {
	cmd.Flags().String("admin", config.DefaultAdminListen, "the daemon's admin listener: HOST:PORT or unix:PATH (or CAPSTAN_ADMIN, or admin.listen of the file given with -c)")
}

// flagOrEnv returns what a flag or its variable says, "" if neither does.
func flagOrEnv(in config.Input, name string) string {
	if v, ok := in.Flag(name); ok {
		return v
	}
	return in.Getenv(config.EnvName(name))
}

func adminAddress(env *environ, cmd *cobra.Command) (string, error) {
	in := env.input(cmd)
	address := flagOrEnv(in, "admin")
	if address == "" {
		a, _, err := config.LoadAdmin(in)
		if err != nil {
			return "", err
		}
		address = a.Listen
	}
	if address == "off" {
		return "", &config.Error{Key: "admin.listen", Source: "the daemon's configuration", Err: errors.New("the admin listener is off: there is nobody to ask")}
	}
	if _, err := config.Reachable(address); err != nil {
		return "", usageError("--admin: %w", err)
	}
	return address, nil
}

func showStatus(ctx context.Context, env *environ, client *admin.Client, output string, watch bool) error {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for first := true; ; first = false {
		err := showOnce(ctx, env, client, output, watch, first)
		switch {
		case watch && ctx.Err() != nil:
			return nil // Ctrl-C
		case errors.As(err, new(*admin.UnreachableError)) && watch && !first:
			env.say("%v", err) // it may be starting again
		case err != nil || !watch:
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func showOnce(ctx context.Context, env *environ, client *admin.Client, output string, watch, first bool) error {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, body, err := client.Status(asking)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if output == outputJSON {
		if !watch {
			b.Write(body)
		} else if err := json.Compact(&b, body); err != nil {
			return err
		} else {
			b.WriteByte('\n')
		}
	} else {
		if watch && isTerminal(env.stdout) {
			b.WriteString("\x1b[H\x1b[2J")
		} else if !first {
			b.WriteByte('\n')
		}
		writeStatus(&b, s, time.Now())
	}
	_, err = env.stdout.Write(b.Bytes())
	return stdoutErr(err)
}
