package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"go.yaml.in/yaml/v3"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/object"
)

// monitoring is where rules and boards are, and what says what an alert means.
const (
	monitoring = "../docker/monitoring"
	runbook    = "../docs/alerts.md"
)

// foreign are series of others that rules and boards name: of the server itself, and of vLLM.
var foreign = regexp.MustCompile(`^(up|vllm:(time_to_first_token_seconds_bucket|prefix_cache_hits_total|prefix_cache_queries_total|kv_cache_usage_perc))$`)

type rules struct {
	Groups []struct {
		Rules []struct {
			Record, Alert, Expr string
			Annotations         map[string]string
		}
	}
}

func readRules(t *testing.T) rules {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(monitoring, "spliced.rules.yaml"))
	must(t, err)
	var r rules
	must(t, yaml.Unmarshal(text, &r))
	return r
}

// boardQueries are the expressions of the board's panels, and of its variables, by title.
func boardQueries(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(monitoring, "spliced.dashboard.json"))
	must(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	must(t, json.Unmarshal(text, &board))
	queries := map[string]string{}
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			queries["panel "+p.Title+" "+q.RefID] = q.Expr
		}
	}
	for _, v := range board.Templating.List {
		if v.Definition != "" {
			queries["variable "+v.Name] = v.Definition
		}
	}
	if len(queries) < 40 {
		t.Fatalf("%d queries in the board", len(queries))
	}
	return queries
}

// exposed are the labels of every family that daemons tell which have all that one can
// have: a disk, a peer, an object store, a GPU, and an engine that uses it.
func exposed(t *testing.T) map[string]map[string]bool {
	t.Helper()
	configs := clusterConfigs(t, "a", "b")
	c := &configs[0]
	c.Disk = filepath.Join(t.TempDir(), "disk")
	c.DiskSize, c.DiskPrivate, c.DiskSlab, c.DiskGranule, c.DiskReserve = 24*settings.MiB, 8*settings.MiB, 4*settings.MiB, 4*settings.KiB, 0
	c.ObjectBucket, c.ObjectEndpoint = "bucket", "http://"+address(t).String() // that nobody answers at
	c.ObjectKeys = object.Keys{ID: "id", Secret: "secret"}
	a := startDaemon(t, *c, nil)
	startDaemon(t, configs[1], nil)
	gpu, _ := startDouble(t, deviceConfig(t))
	client := attach(t, a.Socket())
	p := testProfile(1)
	client.register(p)
	client.publish(newDocument(p, client.hello.Tenants[0].Salt, 1, 64, profile.RoleFirst))
	client.report(wire.ReportRequest{Compared: 1, Bound: 0.1})
	client.served(client.lookedUp())
	families := map[string]map[string]bool{}
	gather := func() {
		for _, r := range []*running{a, gpu} {
			list, err := r.registry.Gather()
			must(t, err)
			for _, f := range list {
				if families[f.GetName()] == nil {
					families[f.GetName()] = map[string]bool{}
				}
				addLabels(families[f.GetName()], f)
			}
		}
	}
	eventually(t, "the other member has told what it holds", func() bool {
		gather()
		return families["spliced_cluster_index_lag_seconds"] != nil
	})
	return families
}

// addLabels adds the labels that a family has.
func addLabels(to map[string]bool, f *dto.MetricFamily) {
	for _, m := range f.Metric {
		for _, l := range m.Label {
			to[l.GetName()] = true
		}
	}
	if f.GetType() == dto.MetricType_HISTOGRAM {
		to["le"] = true
	}
}

var (
	named    = regexp.MustCompile(`(?:spliced_|spliced:|vllm:)[a-z0-9_:]+|\bup\b`)
	selector = regexp.MustCompile(`([a-z_:][a-z0-9_:]*)\{([^}]*)\}`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
)

func TestRulesAndBoardsNameSeriesThatAreTold(t *testing.T) {
	told := exposed(t)
	r := readRules(t)
	queries, recorded := boardQueries(t), map[string]bool{}
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			recorded[rule.Record] = true
			queries["rule "+cmp.Or(rule.Record, rule.Alert)] = rule.Expr
		}
	}
	family := func(name string) map[string]bool {
		for _, suffix := range []string{"_bucket", "_count", "_sum", ""} {
			if base, ok := strings.CutSuffix(name, suffix); ok && told[base] != nil {
				return told[base]
			}
		}
		return nil
	}
	for _, where := range slices.Sorted(maps.Keys(queries)) {
		names := named.FindAllString(queries[where], -1)
		if len(names) == 0 {
			t.Errorf("%s names no series: %s", where, queries[where])
		}
		for _, name := range names {
			if family(name) == nil && !recorded[name] && !foreign.MatchString(name) {
				t.Errorf("%s names %s, which no daemon tells", where, name)
			}
		}
		for _, s := range selector.FindAllStringSubmatch(queries[where], -1) {
			labels := family(s[1])
			for _, l := range matcher.FindAllStringSubmatch(s[2], -1) {
				if name := l[1]; labels != nil && name != "job" && name != "instance" && !labels[name] {
					t.Errorf("%s asks for label %s of %s, which has %q", where, name, s[1], slices.Sorted(maps.Keys(labels)))
				}
			}
		}
	}
}

// An alert that nobody can look up, or that no test fires, is none.
func TestEachAlertHasARunbookAndATestThatFiresIt(t *testing.T) {
	page, err := os.ReadFile(runbook)
	must(t, err)
	text, err := os.ReadFile(filepath.Join(monitoring, "spliced.rules_test.yaml"))
	must(t, err)
	var tests struct {
		Tests []struct {
			Alerts []struct {
				Name   string `yaml:"alertname"`
				Expect []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	must(t, yaml.Unmarshal(text, &tests))
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, group := range tests.Tests {
		for _, a := range group.Alerts {
			if len(a.Expect) > 0 {
				fires[a.Name] = true
			} else {
				silent[a.Name] = true
			}
		}
	}
	alerts := map[string]bool{}
	for _, g := range readRules(t).Groups {
		for _, rule := range g.Rules {
			if rule.Alert == "" {
				continue
			}
			alerts[rule.Alert] = true
			if !fires[rule.Alert] || !silent[rule.Alert] {
				t.Errorf("%s: fired by a test %v, silent in one %v", rule.Alert, fires[rule.Alert], silent[rule.Alert])
			}
			if !strings.Contains(string(page), "\n## "+rule.Alert+"\n") {
				t.Errorf("%s has no section in %s", rule.Alert, runbook)
			}
			if want := "docs/alerts.md#" + strings.ToLower(rule.Alert); rule.Annotations["runbook"] != want || rule.Annotations["summary"] == "" {
				t.Errorf("%s: runbook %q, want %q", rule.Alert, rule.Annotations["runbook"], want)
			}
		}
	}
	for _, section := range regexp.MustCompile(`(?m)^## (Spliced\w+)$`).FindAllStringSubmatch(string(page), -1) {
		if !alerts[section[1]] {
			t.Errorf("%s has a section about %s, which is no alert", runbook, section[1])
		}
	}
}

// promtool runs Prometheus' own tool, named by PROMTOOL or found in PATH.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	path := os.Getenv("PROMTOOL")
	if path == "" {
		found, err := exec.LookPath("promtool")
		if err != nil {
			t.Skip("promtool is missing: make check-alerts says where to get it")
		}
		path = found
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("promtool %q: %v\n%s", args, err, &out)
	}
}

func TestPromtoolTakesTheMetricsOfALivingDaemon(t *testing.T) {
	r, c, p := startClient(t, withDisk(t), nil)
	d := newDocument(p, c.hello.Tenants[0].Salt, 1, 64, profile.RoleFirst)
	c.publish(d)
	c.match(d.key)
	c.report(wire.ReportRequest{Compared: 1, Bound: 0.1})
	promtool(t, r.metricsText(t), "check", "metrics")
}

func TestPromtoolTakesTheBoardsQueries(t *testing.T) {
	var file strings.Builder
	file.WriteString("groups:\n- name: board\n  rules:\n")
	n := 0
	for where, query := range boardQueries(t) {
		if strings.HasPrefix(where, "variable ") {
			continue
		}
		n++
		fmt.Fprintf(&file, "  - record: board:query:%d\n    expr: %q\n", n, strings.ReplaceAll(query, "$__rate_interval", "5m"))
	}
	path := filepath.Join(t.TempDir(), "board.yaml")
	must(t, os.WriteFile(path, []byte(file.String()), 0o600))
	promtool(t, "", "check", "rules", path)
}
