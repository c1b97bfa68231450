// Package settings defines the settings of a daemon: each with its default, unit and range,
// and its sources: a flag, the environment, a YAML file. It also detects the machine from
// which defaults are derived. Other packages apply the settings.
package settings
