package settings

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Each error names the flag, the variable or the line that is to be corrected, and no other.
func TestErrorsNameWhatToCorrect(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		env  map[string]string
		args []string
		want string
	}{
		"a range in the file":          {file: "private: 1GiB\nworkers: 5000\n", want: "config.yaml line 2: workers: 5000 is not between 1 and 1024"},
		"a range in the environment":   {file: "workers: 5\n", env: map[string]string{"SPLICED_WORKERS": "-1"}, want: "SPLICED_WORKERS: -1 is not between 1 and 1024"},
		"a range in a flag":            {env: map[string]string{"SPLICED_WORKERS": "3"}, args: []string{"-workers=-2"}, want: "-workers: -2 is not between 1 and 1024"},
		"a range that others give":     {file: "lease_ttl: 20m\n", want: "config.yaml line 1: lease_ttl: does not fit max-lease-ttl, which was not set: 10m is not between 20m and 24h"},
		"which are out of range":       {file: "lease_ttl: 25h\n", want: "config.yaml line 1: lease_ttl: 25h is not between 1s and 24h"},
		"a name that is a list":        {file: "tenants:\n- {name: [x]}\n- {name: a}\n", want: "config.yaml line 2: tenant 1: name: want one value"},
		"both of them":                 {file: "lease_ttl: 20m\nmax_lease_ttl: 15m\n", want: "config.yaml line 2: max_lease_ttl: 15m is not between 20m and 24h; the range depends on lease-ttl"},
		"one of them is no duration":   {file: "lease_ttl: 20m\nmax_lease_ttl: long\n", want: `config.yaml line 2: max_lease_ttl: "long" is not a duration such as 250ms or 1m30s`},
		"pages larger than a pool":     {args: []string{"-page-bytes=16MiB", "-arena=8MiB"}, want: "-arena: 8MiB is not between 16MiB and 64TiB; the range depends on page-bytes"},
		"a type and a range":           {file: "arena: lots\n", args: []string{"-memory-high", "101"}, want: "config.yaml line 1: arena: \"lots\" is not an amount of bytes such as 65536, 64KiB or 1.5GiB\n-memory-high: 101 is not between 1 and 100"},
		"an overridden value":          {file: "arena: lots\n", env: map[string]string{"SPLICED_WORKERS": "x"}, args: []string{"-arena=64MiB", "-workers=3"}, want: "config.yaml line 1: arena: \"lots\" is not an amount of bytes such as 65536, 64KiB or 1.5GiB\nSPLICED_WORKERS: \"x\" is not a whole number"},
		"an overridden list":           {file: "arena: [1]\n", args: []string{"-arena=64MiB"}, want: "config.yaml line 1: arena: want one value"},
		"a list for one value":         {file: "arena: [1]\n", want: "config.yaml line 1: arena: want one value"},
		"a mapping in a list":          {file: "allow_gids: [1, {a: b}]\n", want: "config.yaml line 1: allow_gids: want a value or a list of values"},
		"a feature's requirement":      {file: "ack_level: synced\n", want: `config.yaml line 1: ack_level: "synced" needs a disk`},
		"of another value":             {file: "ack_level: logged\n", want: `config.yaml line 1: ack_level: "logged" needs a disk`},
		"a key twice":                  {file: "workers: 1\nworkers: 2\n", want: "config.yaml line 2: workers: appears twice"},
		"an unknown key":               {file: "arena: 1GiB\nmax_conections: 3\n", want: "config.yaml line 2: max_conections: unknown setting: did you mean max_connections?"},
		"a key written as a flag":      {file: "max-connections: 3\n", want: "config.yaml line 1: max-connections: unknown setting: did you mean max_connections?"},
		"a key like no other":          {file: "colour: red\n", want: "config.yaml line 1: colour: unknown setting"},
		"an unknown flag":              {args: []string{"-arenna", "1GiB", "-workers", "x"}, want: "-arenna: unknown flag: did you mean -arena?\n-workers: \"x\" is not a whole number"},
		"an unknown flag with a value": {args: []string{"--arenna=1GiB", "-workers=0x"}, want: "-arenna: unknown flag: did you mean -arena?\n-workers: \"0x\" is not a whole number"},
		"a flag without a value":       {args: []string{"-arena"}, want: "-arena: needs a value"},
		"a check that is neither":      {args: []string{"-check=maybe"}, want: `-check: "maybe" is neither true nor false`},
		"a word between flags":         {args: []string{"-check", "now", "-workers=x"}, want: "arguments: \"now\" is not a flag\n-workers: \"x\" is not a whole number"},
		"words that are no flags":      {args: []string{"-workers=x", "---arena", "-=2", "-"}, want: "arguments: \"---arena\" is not a flag\narguments: \"-=2\" is not a flag\narguments: \"-\" is not a flag\n-workers: \"x\" is not a whole number"},
		"a file that is not there":     {env: map[string]string{"SPLICED_CONFIG": "none.yaml"}, want: "SPLICED_CONFIG: none.yaml: file does not exist"},
		"tenants that are no list":     {file: "tenants: default\n", want: "config.yaml line 1: tenants: want a list of tenants, each with a name"},
		"a tenant without a name":      {file: "tenants:\n- {quota: 1GiB}\n", want: "config.yaml line 2: tenant 1: name: 0 bytes, want 1 to 256"},
		"a tenant that is a word":      {file: "tenants:\n- default\n", want: "config.yaml line 2: tenant 1: want keys and values, such as name: search"},
		"a key of a tenant twice":      {file: "tenants:\n- name: a\n  name: b\n", want: `config.yaml line 2: tenant 1: line 3: mapping key "name" already defined at line 2`},
		"values of a tenant": {file: "tenants:\n- name: a\n  quota: lots\n  parallel: maybe\n- name: b\n  salt: [x]\n  quoat: 1\n", want: `config.yaml line 4: tenant "a": parallel: "maybe" is neither true nor false` + "\n" +
			`config.yaml line 3: tenant "a": quota: "lots" is not an amount of bytes such as 65536, 64KiB or 1.5GiB` + "\n" +
			`config.yaml line 7: tenant "b": quoat: unknown key: did you mean quota?` + "\n" + `config.yaml line 6: tenant "b": salt: want one value` + "\n" +
			`config.yaml line 6: tenant "b": salt: the same as of tenant "a", so they would share hits: give each its own`},
		"a tenant twice":         {file: "tenants:\n- {name: a}\n- {name: a}\n", want: `config.yaml line 3: tenant "a": name: "a" appears twice`},
		"a salt twice":           {file: "tenants:\n- {name: a}\n- {name: b}\n", want: `config.yaml line 3: tenant "b": salt: the same as of tenant "a", so they would share hits: give each its own`},
		"no file of a token":     {file: "tenants:\n- name: a\n  token_file: /no/such/file\n", want: `config.yaml line 3: tenant "a": token_file: open /no/such/file: no such file or directory`},
		"merged keys and a null": {file: "tenants:\n- &a {name: a, parallel: yes, token: }\n- {<<: *a, name: b, salt: b}\n"},
	} {
		env := map[string]string{}
		if test.file != "" {
			env["SPLICED_CONFIG"] = "config.yaml"
		}
		for name, value := range test.env {
			env[name] = value
		}
		c, err := valid(from(test.file, env, test.args...))
		switch want := ErrConfig.Error() + ": " + test.want; {
		case test.want == "" && (err != nil || !c.Tenants[0].Parallel || !c.Tenants[1].Parallel):
			t.Errorf("%s: %+v, %v", name, c.Tenants, err)
		case test.want != "" && (err == nil || err.Error() != want):
			t.Errorf("%s:\n%v\nwant\n%s", name, err, want)
		case err != nil && !errors.Is(err, ErrConfig):
			t.Errorf("%s: %v is no ErrConfig", name, err)
		}
	}
}

// Kubernetes gives the containers of a pod variables of each Service.
func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	_, run, err := Load(from("", map[string]string{
		"SPLICED_ARENNA": "1GiB", "SPLICED_MAXCONNECTIONS": "5", "SPLICED_COLOUR": "red", "SPLICED_EMPTY": "", "SPLICED": "x", "ARENA": "1GiB", "SPLICED_WORKERS": "2",
		"SPLICED_DAEMON_UID": "7", "SPLICED_SERVICE_HOST": "10.0.0.1", "SPLICED_SERVICE_PORT": "9400", "SPLICED_SERVICE_PORT_ADMIN_HTTP": "9400",
		"SPLICED_PORT": "tcp://10.0.0.1:9400", "SPLICED_PORT_9400_TCP": "tcp://10.0.0.1:9400", "SPLICED_PORT_9400_TCP_PROTO": "tcp", "SPLICED_PORT_7946_UDP_PORT": "7946",
		"SPLICED_PORT_9400_TCP_ADDR": "10.0.0.1", "SPLICED_ADMIN_SERVICE_HOST": "10.0.0.2", "SPLICED_ADMIN_PORT_9400_TCP_ADDR": "10.0.0.2",
	}))
	must(t, err)
	want := []string{
		"SPLICED_ARENNA is ignored: there is no such setting: did you mean SPLICED_ARENA?", "SPLICED_COLOUR is ignored: there is no such setting",
		"SPLICED_MAXCONNECTIONS is ignored: there is no such setting: did you mean SPLICED_MAX_CONNECTIONS?",
	}
	if !slices.Equal(run.Warnings, want) {
		t.Errorf("%s", strings.Join(run.Warnings, "\n"))
	}
}
