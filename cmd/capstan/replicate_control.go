package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/internal/admin"
	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
)

// controls are the verbs with what they do, in the order of help.
var controls = []struct {
	verb  daemon.Verb
	short string
}{
	{daemon.Pause, "stop a route of the daemon after what is in progress; it stays paused over restarts"},
	{daemon.Resume, "end a pause, or let a route that failed try again"},
	{daemon.Resync, "copy a route again, comparing with what is there: the way on from lost-history"},
	{daemon.Finalize, "end a route for good: apply what the source has, give TTL indexes their expiry back"},
	{daemon.Retry, "apply a route's dead letters again, by the present versions of their documents"},
}

// newReplicateControls returns the subcommands of capstan replicate that tell a running daemon what to do with a route.
func newReplicateControls(env *environ) []*cobra.Command {
	cmds := make([]*cobra.Command, len(controls))
	for i, c := range controls {
		var output string
		cmd := &cobra.Command{
			Use:   string(c.verb) + " ROUTE",
			Short: c.short,
			Example: fmt.Sprintf(`  capstan replicate %s orders --token-file /etc/capstan.token
  CAPSTAN_ADMIN=unix:/run/capstan/admin.sock capstan replicate %[1]s orders/berlin -c /etc/capstan.yaml`, c.verb),
			Args: exactArgs(1, "the name of a route, as capstan status shows it"),
			RunE: func(cmd *cobra.Command, args []string) error {
				if err := checkOutput(output); err != nil {
					return err
				}
				return control(cmd.Context(), env, cmd, args[0], c.verb, output)
			},
		}
		addAdminFlag(cmd)
		cmd.Flags().String("token-file", "", "file that holds the token (or CAPSTAN_TOKEN_FILE, or admin.token of the file given with -c)")
		cmd.Flags().StringVar(&output, "output", outputText, "text or json")
		cmds[i] = cmd
	}
	return cmds
}

func control(ctx context.Context, env *environ, cmd *cobra.Command, route string, verb daemon.Verb, output string) error {
	address, err := adminAddress(env, cmd)
	if err != nil {
		return err
	}
	token, err := adminToken(env, cmd)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, admin.ControlTimeout+askTimeout)
	defer cancel()
	r, err := admin.NewClient(address).Control(asking, route, verb, token)
	if err != nil {
		return err
	}
	if output == outputJSON {
		return stdoutErr(json.NewEncoder(env.stdout).Encode(r))
	}
	text := fmt.Sprintf("%s is %s", r.Route, r.Phase)
	if verb == daemon.Retry {
		text = fmt.Sprintf("%s: %s gone, %d left", r.Route, deadLetters(r.Done), r.Left)
	}
	_, err = fmt.Fprintln(env.stdout, text)
	return stdoutErr(err)
}

// adminToken finds the token; "" if there is none, which the daemon refuses with a hint.
func adminToken(env *environ, cmd *cobra.Command) (string, error) {
	in := env.input(cmd)
	if path := flagOrEnv(in, "token-file"); path != "" {
		token, err := config.ReadSecret(path)
		if err != nil {
			return "", &config.Error{Key: "token-file", Source: path, Err: err}
		}
		return token, nil
	}
	a, tokenErr, err := config.LoadAdmin(in)
	if err == nil {
		err = tokenErr
	}
	return a.Token, err
}
