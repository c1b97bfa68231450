// Package settings defines the settings of a daemon with their defaults, units, ranges and sources:
// a flag, the environment, a YAML file. It also detects the machine, from which defaults are
// derived. Other packages apply the settings.
package settings
