package main

import "github.com/spf13/cobra"

func newDemoCmd(*environ) *cobra.Command {
	return newGroup("demo", "", "")
}
