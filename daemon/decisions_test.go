package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// full has the disk tier take no objects, so that all that leaves memory is evicted.
type full struct{ tier.Tier }

func (full) Admit(*tier.Object, int64) (tier.Write, error) { return nil, tier.ErrFull }

func fullDisk(below tier.Tier) tier.Tier { return full{below} }

// evicting is the configuration of a daemon that soon evicts.
func evicting(t testing.TB, disk string) settings.Config {
	config := diskIn(t, disk)
	config.Arena = settings.MiB
	return config
}

func startEvicting(t testing.TB, c settings.Config) *running {
	t.Helper()
	return startParts(t, c, Parts{Lower: fullDisk})
}

// evictOne publishes until something was evicted, and answers that decision.
func evictOne(t *testing.T, socket string, seed uint64) api.Decision {
	t.Helper()
	c := attach(t, socket)
	defer c.close()
	c.register(testProfile(1))
	admin := adminAt(t, socket)
	for range 200 {
		d := newDocument(testProfile(1), nil, seed, 512, profile.RoleFirst)
		if id, code := c.reserve(d, 0); code == wire.OK {
			c.commit(id, d.layout, d.bytes)
		}
		seed++
		list, err := admin.Decisions(t.Context(), api.DecisionQuery{What: api.DecidedEvicted, Limit: 1})
		must(t, err)
		if len(list) == 1 && list[0].Profile == c.profile {
			return list[0]
		}
	}
	t.Fatal("nothing was evicted")
	return api.Decision{}
}

func adminAt(t testing.TB, socket string) *api.Client {
	t.Helper()
	c, err := api.NewClient("unix:"+api.SocketBeside(socket), "")
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// whyEvicted is what a daemon says of the key of a decision: that decision, or nothing.
func whyEvicted(t *testing.T, socket string, d api.Decision, more api.DecisionQuery) []api.Decision {
	t.Helper()
	more.Prefix, more.What, more.Limit = d.Key.String()[:16], d.What, 10
	list, err := adminAt(t, socket).Decisions(t.Context(), more)
	must(t, err)
	for _, got := range list {
		got.Profile = d.Profile
		if !got.At.Equal(d.At) || *got.Key != *d.Key || got.Why != d.Why || got.Begin != d.Begin || got.End != d.End || got.Value != d.Value || got.Bytes != d.Bytes || got.Object != d.Object || got.Tenant != d.Tenant {
			t.Errorf("told %+v, decided %+v", got, d)
		}
	}
	return list
}

func TestDecisionsOutliveARestart(t *testing.T) {
	leakCheck(t)
	config := evicting(t, filepath.Join(t.TempDir(), "disk"))
	r := startEvicting(t, config)
	was := evictOne(t, r.Socket(), 1)
	r.stop()
	info, err := os.Stat(filepath.Join(config.Disk, "decisions.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}

	// Another profile comes first now, so that numbers differ.
	r = startEvicting(t, config)
	other := attach(t, r.Socket())
	two := testProfile(2)
	other.register(two)
	for _, number := range []uint32{0, other.profile + 1} {
		if number > 0 {
			c := attach(t, r.Socket())
			c.register(testProfile(1))
			number = c.profile
			c.close()
		}
		eventually(t, "the decision of the earlier start", func() bool { return len(whyEvicted(t, r.Socket(), was, api.DecisionQuery{})) == 1 })
		if got := whyEvicted(t, r.Socket(), was, api.DecisionQuery{Profile: &number, Tenant: was.Tenant})[0]; got.Profile != number {
			t.Errorf("profile %d, want %d", got.Profile, number)
		}
	}
	if n := len(whyEvicted(t, r.Socket(), was, api.DecisionQuery{Profile: &other.profile})) + len(whyEvicted(t, r.Socket(), was, api.DecisionQuery{Tenant: "guarded"})); n != 0 {
		t.Errorf("told %d times for another profile and tenant", n)
	}
	other.close()
	now := evictOne(t, r.Socket(), 1000)
	list, err := r.adminClient(t).Decisions(t.Context(), api.DecisionQuery{Limit: 1000})
	if err != nil || len(list) < 4 || list[len(list)-1].At.After(was.At) || !list[0].At.After(was.At) {
		t.Fatalf("%d decisions, %v", len(list), err)
	}
	for i := 1; i < len(list); i++ {
		if list[i].At.After(list[i-1].At) {
			t.Fatalf("decision %d is newer than the one before it", i)
		}
	}
	most := len(list) - 1
	if list, err = r.adminClient(t).Decisions(t.Context(), api.DecisionQuery{Limit: most}); err != nil || len(list) != most {
		t.Errorf("%d decisions of at most %d, %v", len(list), most, err)
	}
	r.stop()

	// Its tenant is not configured any more.
	config.Tenants[0].Name, config.EventsTenants[0] = "another", "another"
	r = startEvicting(t, config)
	for _, d := range []api.Decision{was, now} {
		eventually(t, "what two starts decided", func() bool {
			return len(whyEvicted(t, r.Socket(), d, api.DecisionQuery{Tenant: "default"})) == 1
		})
	}
}

// A directory that another daemon has is read as soon as that one ends.
func TestDecisionsAreListedWhileTheDiskIsAway(t *testing.T) {
	leakCheck(t)
	config := evicting(t, filepath.Join(t.TempDir(), "disk"))
	first := startEvicting(t, config)
	was := evictOne(t, first.Socket(), 1)
	config.Socket = testConfig(t).Socket
	second := startEvicting(t, config)
	now := evictOne(t, second.Socket(), 1000)
	if own, theirs := len(whyEvicted(t, second.Socket(), now, api.DecisionQuery{})), len(whyEvicted(t, second.Socket(), was, api.DecisionQuery{})); own != 1 || theirs != 0 {
		t.Errorf("without the disk, told of %d decisions of its own and %d of the other daemon", own, theirs)
	}
	first.stop()
	eventually(t, "the decision of the other daemon", func() bool { return len(whyEvicted(t, second.Socket(), was, api.DecisionQuery{})) == 1 })
}

// notedEnv makes the test binary a daemon on the socket that notes decisions often in
// this directory, until it is killed.
const notedEnv = "SPLICED_TEST_NOTED"

func TestAKilledDaemonsDecisionsAreThereUpToTheLastNote(t *testing.T) {
	leakCheck(t)
	config := evicting(t, filepath.Join(t.TempDir(), "disk"))
	command := ourselves(notedEnv+"="+config.Disk, daemonEnv+"="+config.Socket)
	must(t, command.Start())
	listens(t, config.Socket)
	was := evictOne(t, config.Socket, 1)
	eventually(t, "the decision is noted", func() bool {
		content, _ := os.ReadFile(filepath.Join(config.Disk, "decisions.json"))
		return strings.Contains(string(content), was.Key.String()) && strings.Contains(string(content), api.DecidedEvicted)
	})
	must(t, command.Process.Kill())
	_ = command.Wait()
	r := startEvicting(t, config)
	eventually(t, "the decision of the killed daemon", func() bool { return len(whyEvicted(t, r.Socket(), was, api.DecisionQuery{})) == 1 })
}

// What leaves memory for the disk, and then the disk, is told twice, each time why.
func TestWhatLeftTheDiskIsTold(t *testing.T) {
	config := diskIn(t, filepath.Join(t.TempDir(), "disk"))
	config.Arena, config.DiskSize, config.DiskSlab = settings.MiB, 4*settings.MiB, settings.MiB
	r := startDaemon(t, config, nil)
	admin := adminAt(t, r.Socket())
	w := watch(t, admin, api.EventQuery{Kinds: []string{api.EventEvicted}})
	c := attach(t, r.Socket())
	p := testProfile(1)
	c.register(p)
	decided := func(q api.DecisionQuery) []api.Decision {
		q.Limit = 1000
		list, err := admin.Decisions(t.Context(), q)
		must(t, err)
		return list
	}
	onDisk := func(d api.Decision) bool { return d.Why == "for room on disk" }
	// The disk may also let go of one that memory still has.
	wholeStory := func(d api.Decision) bool {
		story := decided(api.DecisionQuery{Prefix: d.Key.String()})
		return onDisk(d) && len(story) == 3 && onDisk(story[0]) && story[1].What == api.DecidedDemoted && story[2].What == api.DecidedAdmitted
	}
	var left *api.Decision
	for seed := uint64(1); left == nil; seed++ {
		d := newDocument(p, nil, seed, 512, profile.RoleFirst)
		if id, code := c.reserve(d, 0); code == wire.OK {
			c.commit(id, d.layout, d.bytes)
		}
		evicted := r.counter("disk_evicted_room") > 0
		list := decided(api.DecisionQuery{What: api.DecidedEvicted})
		if evicted && !slices.ContainsFunc(list, onDisk) {
			t.Fatalf("the disk has evicted, and it is not told: %+v", list)
		}
		if at := slices.IndexFunc(list, wholeStory); at >= 0 {
			left = &list[at]
		} else if seed == 1000 {
			t.Fatalf("none left memory for the disk, and then the disk: %+v", list)
		}
	}
	if left.End-left.Begin != 512 || left.Profile != c.profile || left.Tenant != "default" || left.Object != "segment" || left.Bytes < p.SegmentLayout(512).Bytes {
		t.Errorf("%+v", left)
	}
	for e := w.next(api.EventEvicted); ; e = w.next(api.EventEvicted) {
		if *e.Key != *left.Key {
			continue
		}
		if e.Why != "for room on disk" || e.Policy != "lru" || !strings.Contains(e.Text, "it left the disk") || e.Model != p.Identity().Model {
			t.Errorf("the event: %+v", e)
		}
		break
	}
}
