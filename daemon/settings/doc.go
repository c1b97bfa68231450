// Package settings says what can be set on a daemon: each setting with its
// default, unit and range, and where it is read from: a flag, the environment, a
// YAML file. It also knows the machine that defaults are derived from. What is
// done with a setting is left to others.
package settings
