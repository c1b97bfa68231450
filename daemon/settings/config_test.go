package settings

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite files that tests compare with")

// from makes sources of literals.
func from(file string, env map[string]string, args ...string) Sources {
	return Sources{
		Args:    args,
		Environ: environ(env),
		ReadFile: func(path string) ([]byte, error) {
			if path != "config.yaml" {
				return nil, fmt.Errorf("%s: %w", path, os.ErrNotExist)
			}
			return []byte(file), nil
		},
		ReadSecret: ReadSecret,
		Output:     &bytes.Buffer{},
	}
}

func environ(env map[string]string) (list []string) {
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

// valid loads a configuration for bigMachine, and returns its errors.
func valid(s Sources) (Config, error) {
	c, _, err := Load(s)
	if err == nil {
		c.Resolve(bigMachine)
		err = c.Validate()
	}
	return c, err
}

var bigMachine = Machine{MemoryBytes: 64 * GiB, CPUs: 8, UID: 1000, Host: "big"}

func TestADaemonThatWasToldNothingIsSafe(t *testing.T) {
	for _, m := range []Machine{bigMachine, {MemoryBytes: 512 * MiB, CPUs: 1, Host: "small"}, {CPUs: 2, Host: "unknown"}} {
		c, _, err := Load(from("", nil))
		must(t, err)
		c.Resolve(m)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", m.Host, err)
		}
		if short := c.Fit(m); len(short) > 0 {
			t.Errorf("%s: %v", m.Host, short)
		}
		if clients := c.ConnectionMemory / (c.Staging + c.Slots); clients < 4 {
			t.Errorf("%s: room for %d clients", m.Host, clients)
		}
		if m.MemoryBytes > 0 && c.Arena+c.Private+c.ConnectionMemory > m.MemoryBytes {
			t.Errorf("%s: %v + %v + %v of %v", m.Host, c.Arena, c.Private, c.ConnectionMemory, m.MemoryBytes)
		}
		if !strings.HasPrefix(c.HTTP, "127.0.0.1:") {
			t.Errorf("%s: admin REST on %s", m.Host, c.HTTP)
		}
	}
}

func TestAFlagWinsOverTheEnvironmentOverTheFile(t *testing.T) {
	file := "max_connections: 10\nmax_in_flight: 11\nworkers: 12\narena: 1GiB\nlease_ttl: 30s\nallow_gids: [5, 6]\n"
	env := map[string]string{"SPLICED_CONFIG": "config.yaml", "SPLICED_MAX_IN_FLIGHT": "21", "SPLICED_WORKERS": "22"}
	c, _, err := Load(from(file, env, "-workers", "32", "-http=off"))
	must(t, err)
	if c.MaxConnections != 10 || c.MaxInFlight != 21 || c.Workers != 32 {
		t.Errorf("file %d, environment %d, flag %d", c.MaxConnections, c.MaxInFlight, c.Workers)
	}
	if c.Arena != GiB || c.LeaseTTL != 30*time.Second || len(c.AllowGIDs) != 2 || c.HTTP != Off {
		t.Errorf("%+v", c)
	}
	if c.MaxLeases != Default().MaxLeases {
		t.Error("what nobody set is not the default")
	}
}

func TestEverySettingCanBeSetInEveryWay(t *testing.T) {
	sample := func(s *setting) string {
		switch s.value.(type) {
		case *Bytes:
			return "8MiB"
		case *integer:
			return "3"
		case *interval:
			return "7s"
		case *toggle:
			if s.value.String() == "off" {
				return "on"
			}
		case *idList:
			return "1,2"
		case *address:
			return "10.1.2.3:4567"
		}
		return "off"
	}
	config := Default()
	for i, s := range config.settings() {
		want := sample(&s)
		for way, sources := range map[string]Sources{
			"flag":        from("", nil, "-"+s.name, want),
			"environment": from("", map[string]string{s.env(): want}),
			"file":        from(s.key()+": "+want+"\n", map[string]string{"SPLICED_CONFIG": "config.yaml"}),
		} {
			got, _, err := Load(sources)
			if err = errors.Join(err, got.loaded.Err()); err != nil {
				t.Errorf("%s by %s: %v", s.name, way, err)
				continue
			}
			if text := got.settings()[i].value.String(); text != want {
				t.Errorf("%s by %s: %s, want %s", s.name, way, text, want)
			}
		}
		if s.about == "" || s.bound == "" || s.zero == "" {
			t.Errorf("%s is not documented", s.name)
		}
	}
}

func TestOtherBadSources(t *testing.T) {
	for name, s := range map[string]Sources{
		"not YAML":            from("a: [", nil, "-config", "config.yaml"),
		"not a mapping":       from("- a\n", nil, "-config", "config.yaml"),
		"both kinds of token": from("tenants: [{name: a, token: x, token_file: config.yaml}]", nil, "-config", "config.yaml"),
		"a second document":   from("arena: 1GiB\n---\nprivate: 1GiB\n", nil, "-config", "config.yaml"),
		"rubbish behind it":   from("arena: 1GiB\n---\n}{\n", nil, "-config", "config.yaml"),
		"a null value":        from("arena:\n", nil, "-config", "config.yaml"),
	} {
		if _, err := valid(s); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := Load(from("", nil, "-help")); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("help: %v", err)
	}
	if _, err := valid(from("# nothing\n", nil, "-config", "config.yaml")); err != nil {
		t.Errorf("a file of comments: %v", err)
	}
}

func TestValidateListsEveryBadSetting(t *testing.T) {
	c := Default()
	c.Resolve(bigMachine)
	c.PageBytes = 5000
	c.HugePages, c.LogLevel, c.LogFormat = "perhaps", "loud", "xml"
	c.Staging = 2 * GiB
	c.MaxConnections, c.MaxInFlight, c.Workers = 0, -1, 5000
	c.SendTimeout, c.MaxLeaseTTL = 0, time.Second
	c.HTTP, c.HTTPHosts = "everywhere", nameList{"Upper"}
	c.Socket = strings.Repeat("s", 200)
	c.Node = strings.Repeat("n", 300)
	c.DiskGranule, c.DiskSize, c.DiskPrivate, c.DiskSlab, c.DiskReserve, c.DiskQueue = 3000, KiB, -1, 2*TiB, -1, KiB
	c.HBMPublic, c.HBMPrivate, c.HBMPageBytes, c.HBMClient, c.HBMConnections = KiB, 5*TiB, 3000, 64*KiB, KiB
	c.HBMDevices, c.HBMLibrary, c.HBMShare, c.HBMTimeout = nameList{"gpu0", "3", "03", "all"}, strings.Repeat("l", 4000), "both", time.Hour
	c.Disk, c.DiskCodec, c.DiskWorkers, c.DiskSyncEvery = strings.Repeat("d", 4000), "zip", 0, 0
	c.AckLevel, c.MemoryHigh, c.MemoryLow, c.PromoteTimeout = "default", 80, 90, 0
	c.Eviction, c.EvictionPublic, c.EvictionPrivate = "", "fifo", "LRU"
	c.AdviseMemory, c.AdviseNodes, c.AdviseCheckpoints, c.AdviseSolveEvery = KiB, 63, 1025, 0
	c.Decisions = 0
	c.PrefillSpeed, c.MemoryBandwidth, c.DiskBandwidth = -1, -1, -2
	c.Tenants = []Tenant{{Name: "a", Quota: -1}, {Name: "a"}, {Name: "", Salt: "x", Token: strings.Repeat("t", 2000)}}
	err := c.Validate()
	if !errors.Is(err, ErrConfig) {
		t.Fatal(err)
	}
	for _, part := range []string{
		"page-bytes:", "huge-pages:", "log-level:", "log-format:", "staging:",
		"max-connections:", "max-in-flight:", "workers:", "send-timeout:", "max-lease-ttl:", "http:", "http-hosts:", "socket:", "node:",
		"disk: 4000 bytes", "disk-granule:", "disk-size:", "disk-private:", "disk-slab:", "disk-reserve:", "disk-queue:", "disk-codec:",
		"hbm-public:", "hbm-private:", "hbm-page-bytes:", "hbm-client:", "hbm-connections:", `hbm-device: "gpu0" is not a device UUID`, `hbm-device: "3" is listed twice`, "hbm-device: all cannot be combined with other devices",
		"hbm-library: 4000 bytes", "hbm-share:", "hbm-timeout:",
		"disk-workers:", "disk-sync-every:", "ack-level:", "memory-low:", "promote-timeout:",
		"eviction:", "eviction-public:", `eviction-private: "LRU" is not one of lru, gdsf, marconi, default`,
		"advise-memory:", "advise-nodes:", "advise-checkpoints:", "advise-solve-every:", "decisions:", "prefill-speed:", "memory-bandwidth:", "disk-bandwidth:",
		"tenants[0]: quota: -1", `tenants[1]: name: "a" appears twice`, "tenants[2]: name: 0 bytes", "tenants[2]: token: 2000 bytes",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("nothing about %q in:\n%v", part, err)
		}
	}
}

func TestLimitsAreShownWithoutZeros(t *testing.T) {
	for want, v := range map[string]any{
		"0s": time.Duration(0), "10s": 10 * time.Second, "1m": time.Minute, "1m10s": 70 * time.Second, "10m": 10 * time.Minute,
		"1h": time.Hour, "1h10m": 70 * time.Minute, "20h": 20 * time.Hour, "1h0m10s": time.Hour + 10*time.Second, "0B": Bytes(0), "1024TiB": 1024 * TiB, "10": 10,
	} {
		if got := limit(v); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What a feature needs of other settings is asked for where it is on.
func TestAFeatureThatIsOffNeedsNothing(t *testing.T) {
	noDefault := "tenants:\n  - name: search\n  - name: chat\n    salt: chat\n"
	for name, test := range map[string]struct{ file, on, refused string }{
		"events of tenants":    {noDefault, "events_bind: 127.0.0.1:5557", `events-tenants: tenant "default" is not configured`},
		"events of nobody":     {"events_tenants: nobody", "events_bind: 127.0.0.1:5557", `events_tenants: tenant "nobody" is not configured`},
		"events' two ports":    {"events_replay_bind: 127.0.0.1:5557", "events_bind: 127.0.0.1:5557", "events_replay_bind:"},
		"GPU memory of one":    {"hbm_client: 2GiB", "hbm_public: 8GiB", "hbm_client: does not fit hbm-connections, which was not set: 1GiB"},
		"GPU pages":            {"hbm_page_bytes: 1MiB\nhbm_client: 1MiB", "hbm_public: 8GiB", "hbm_client:"},
		"admin TLS":            {"admin_tls_cert_file: /etc/cert.pem\nhttp: \"off\"", "http: 127.0.0.1:9400", "admin_tls_cert_file:"},
		"cluster TLS":          {"cluster_tls_cert: /etc/cert.pem\ncluster_bind: 10.0.0.1:7946\ncluster_insecure: on", "cluster_seeds: node", "cluster_tls_cert:"},
		"cluster without keys": {"cluster_bind: 10.0.0.1:7946", "cluster_seeds: node", "cluster-keyring:"},
		"bucket without keys":  {"object_endpoint: https://s3.example.com", "object_bucket: cold", "object-credentials:"},
	} {
		validate := func(file string) error {
			_, err := valid(from(file, nil, "-config", "config.yaml"))
			return err
		}
		if err := validate(test.file + "\n"); err != nil {
			t.Errorf("%s, which is off: %v", name, err)
		}
		file := test.file + "\n" + test.on + "\n"
		if strings.HasPrefix(test.on, "http:") {
			file = strings.Replace(test.file, "http: \"off\"", test.on, 1)
		}
		if err := validate(file); err == nil || !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%s, which is on: %v, want %q", name, err, test.refused)
		}
	}
}

func TestSizesAreReadAndWrittenExactly(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "7": 7, "65536": 64 * KiB, "64KiB": 64 * KiB, "1.5GiB": GiB + GiB/2, "2 MiB": 2 * MiB, "3kB": 3000, "1GB": 1e9,
		"5B": 5, "1TiB": TiB, "9223372036854775807": 1<<63 - 1,
	} {
		var b Bytes
		if err := b.Set(text); err != nil || b != want {
			t.Errorf("%q: %d, %v, want %d", text, b, err, want)
		}
		var again Bytes
		if err := again.Set(b.String()); err != nil || again != b {
			t.Errorf("%q: written as %q, read as %d, %v", text, b, again, err)
		}
	}
	for _, text := range []string{"", "B", "-1", "-1KiB", "1e3", "0x10", "NaN", "inf", "1KB2", "9223372036854775808", "99999999TiB", "1 2", "1_000"} {
		b := Bytes(42)
		if err := b.Set(text); err == nil || b != 42 {
			t.Errorf("%q was read as %d", text, b)
		}
	}
}

// What a file says is refused in words, or is a configuration, and the same one when
// it is read again.
func FuzzFile(f *testing.F) {
	for _, text := range []string{"", "socket: /run/s\narena: 1GiB\n", "tenants:\n  - name: default\n  - name: b\n    token: xyz\n    quota: 1GiB\n",
		"allow_gids: [1, 2]\n---\nb: c\n", "a: &a [*a]\n", "tenants: {name: x}\n", "tenants: &a [*a]\n", "tenants: [{<<: 1}, {name: {}}, {? [x] : y}]\n", "? [x]\n: y\n", "\x00", "tenants:\n  - token_file: /x\n"} {
		f.Add(text, "a token")
	}
	f.Fuzz(func(t *testing.T, text, token string) {
		load := func() (Config, error) {
			c, _, err := Load(Sources{
				Args: []string{"-config", "file"}, Output: io.Discard,
				ReadFile:   func(string) ([]byte, error) { return []byte(text), nil },
				ReadSecret: func(string) (string, string, error) { return token, "", nil },
			})
			if err == nil {
				err = c.Validate()
			}
			return c, err
		}
		c, err := load()
		again, err2 := load()
		switch {
		case (err == nil) != (err2 == nil):
			t.Fatalf("read twice: %v, then %v", err, err2)
		case err != nil && !errors.Is(err, ErrConfig):
			t.Fatalf("%v is no ErrConfig", err)
		case err == nil && !reflect.DeepEqual(c, again):
			t.Fatalf("read twice: %+v, then %+v", c, again)
		}
	})
}

// The file of a token is a token without white space around it, or refused.
func FuzzSecret(f *testing.F) {
	for _, text := range []string{"", " \n", "token\n", "\x00", strings.Repeat("x", maxSecret), strings.Repeat("x", maxSecret+1)} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "token")
	f.Fuzz(func(t *testing.T, text []byte) {
		must(t, os.WriteFile(path, text, 0o600))
		secret, warning, err := ReadSecret(path)
		want := strings.TrimSpace(string(text))
		if good := want != "" && len(text) <= maxSecret; warning != "" || (err == nil) != good || good && secret != want {
			t.Fatalf("%q: %q, %q, %v", text, secret, warning, err)
		}
	})
}

func FuzzBytes(f *testing.F) {
	f.Add("1.5GiB")
	f.Fuzz(func(t *testing.T, text string) {
		var b, again Bytes
		if b.Set(text) != nil {
			return
		}
		if b < 0 {
			t.Fatalf("%q is %d", text, b)
		}
		if err := again.Set(b.String()); err != nil || again != b {
			t.Fatalf("%q: %d is written as %q and read as %d", text, b, b.String(), again)
		}
	})
}

func TestTheMemoryLimitIsTheLeastOfAllThatApply(t *testing.T) {
	const meminfo = "MemTotal: 100 kB\nMemAvailable:   8388608 kB\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  Bytes
	}{
		"nothing known":  {nil, 0},
		"the machine":    {map[string]string{"proc/meminfo": meminfo}, 8 * GiB},
		"version 2":      {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "2147483648\n"}, 2 * GiB},
		"its parent":     {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1073741824\n"}, GiB},
		"in a container": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, GiB},
		"version 1":      {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "7:cpu,memory:/j\n3:pids:/j\n", "sys/fs/cgroup/memory/j/memory.limit_in_bytes": "536870912\n"}, GiB / 2},
		"no limit in 1":  {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "7:memory:/j\n", "sys/fs/cgroup/memory/j/memory.limit_in_bytes": "9223372036854771712\n"}, 8 * GiB},
	} {
		root := t.TempDir()
		for path, text := range test.files {
			full := filepath.Join(root, path)
			must(t, os.MkdirAll(filepath.Dir(full), 0o755))
			must(t, os.WriteFile(full, []byte(text), 0o644))
		}
		if got := memoryLimit(root); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestAddressesOfSpans(t *testing.T) {
	for endpoint, want := range map[string]string{
		"": "", "http://localhost:4318/v1/traces": "", "https://[::1]/v1/traces": "",
		"http://": `"http://" has no host`, "localhost:4318": "is not an http:// or https:// URL", "http://h:99999": "has no port between 1 and 65535",
	} {
		_, err := valid(from("", nil, "-otlp-endpoint="+endpoint))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", endpoint, err, want)
		}
	}
}

// docs/configuration.md ends with a table that is written from settings().
func TestTheReferenceListsEverySetting(t *testing.T) {
	const path, mark = "../../docs/configuration.md", "<!-- The table below is written by `go test ./daemon/settings -run Reference -update`. -->\n"
	text, err := os.ReadFile(path)
	must(t, err)
	before, after, ok := strings.Cut(string(text), mark)
	if !ok {
		t.Fatalf("%s has no mark", path)
	}
	table := referenceTable()
	if *update {
		must(t, os.WriteFile(path, []byte(before+mark+table), 0o644))
		return
	}
	if after != table {
		t.Errorf("%s does not list the settings as they are; run with -update", path)
	}
}

func referenceTable() string {
	var b strings.Builder
	b.WriteString("\n| flag | environment, file | default | unit and range | zero or empty | meaning |\n|---|---|---|---|---|---|\n")
	c := Default()
	for _, s := range c.settings() {
		value := "-"
		if !s.isZero() {
			value = "`" + s.value.String() + "`"
		}
		fmt.Fprintf(&b, "| `-%s` | `%s` `%s` | %s | %s | %s | %s |\n", s.name, s.env(), s.key(), value, s.bound, s.zero, s.about)
	}
	return b.String()
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
