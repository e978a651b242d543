package config

import _ "embed"

//go:embed sample.yaml
var sample string

// Sample returns a configuration file that holds every key with its default.
func Sample() string { return sample }
