// Package etc holds the sample files that an installation starts from: the configuration with every key and its default, the
// systemd unit, and the alerts.
package etc

import _ "embed"

//go:embed capstan.yaml
var config string

// Config returns capstan.yaml: every key with its default, and every key of a route in a block of comments.
func Config() string { return config }
