package config

import "github.com/seed-12ef14e5/capstan/etc"

// Sample returns a configuration file that holds every key with its default: etc/capstan.yaml.
func Sample() string { return etc.Config() }
