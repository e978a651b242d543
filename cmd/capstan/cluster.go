package main

import "github.com/spf13/cobra"

func newClusterCmd(*environ) *cobra.Command {
	return newGroup("cluster", "", "")
}
