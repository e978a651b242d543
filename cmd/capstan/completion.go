package main

import (
	"github.com/spf13/cobra"
)

func newCompletionCmd(env *environ) *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "print the completion script for bash, zsh, fish or powershell",
		Example: `  source <(capstan completion bash)
  capstan completion zsh > "${fpath[1]}/_capstan"
  capstan completion fish > ~/.config/fish/completions/capstan.fish`,
		Args:              exactArgs(1, "one SHELL: bash, zsh, fish or powershell"),
		ValidArgs:         []string{"bash", "zsh", "fish", "powershell"},
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // needs no settings
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return stdoutErr(root.GenBashCompletionV2(env.stdout, true))
			case "zsh":
				return stdoutErr(root.GenZshCompletion(env.stdout))
			case "fish":
				return stdoutErr(root.GenFishCompletion(env.stdout, true))
			case "powershell":
				return stdoutErr(root.GenPowerShellCompletionWithDesc(env.stdout))
			}
			return usageError("no completion for %q: there is bash, zsh, fish and powershell", args[0])
		},
	}
}
