package remote_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/api/loopback"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/remote"
)

// nodeSpec is a node of a cluster on this machine.
type nodeSpec struct {
	Name, Dir, Keyring string
	Gossip             string
	Seeds              []string
	Speed              int // tokens a second that engines are believed to compute
}

func (n *nodeSpec) socket() string { return filepath.Join(n.Dir, "s") }

func (n *nodeSpec) config() settings.Config {
	c := settings.Default()
	c.Socket, c.AdminSocket, c.HTTP = n.socket(), settings.Off, settings.Off
	c.Arena, c.Private, c.Staging, c.Slots = 64*settings.MiB, 64*settings.MiB, 16*settings.MiB, 16*settings.MiB
	c.PromoteTimeout = 10 * time.Second
	c.ClusterNode, c.ClusterKeyring, c.ClusterSeeds = n.Name, n.Keyring, n.Seeds
	c.ClusterBind, c.ClusterPeerBind = netip.MustParseAddrPort(n.Gossip), netip.MustParseAddrPort("127.0.0.1:0")
	c.PrefillSpeed = n.Speed
	for i := range c.Tenants {
		c.Tenants[i].Parallel = true
	}
	return c
}

func nodes(t *testing.T, speed int, names ...string) (list []nodeSpec) {
	t.Helper()
	keyring := filepath.Join(t.TempDir(), "keyring")
	if err := os.WriteFile(keyring, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	gossip, release, err := loopback.Reserve(len(names))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	var seeds []string
	for i, name := range names {
		dir, err := os.MkdirTemp("", "spl")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		seeds = append(seeds, gossip[i])
		list = append(list, nodeSpec{Name: name, Dir: dir, Keyring: keyring, Gossip: gossip[i], Speed: speed})
	}
	for i := range list {
		list[i].Seeds = seeds
	}
	return list
}

// run runs the node in this process until stop or the test's end.
func (n *nodeSpec) run(t *testing.T) (stop func()) {
	t.Helper()
	d, err := daemon.New(n.config(), daemon.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	select {
	case <-d.Ready():
	case err := <-ended:
		t.Fatalf("daemon: %v", err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("daemon: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// works runs an engine at a node's socket until the test ends.
func works(t *testing.T, socket string, m *refengine.Model[float32]) {
	t.Helper()
	client := attached(t, socket)
	r, err := client.Register(m.Profile(), connector.Binding{Connector: "refengine worker"})
	if err == nil {
		err = r.WaitReady(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := remote.New(ctx, client, r)
	var working sync.WaitGroup
	working.Go(func() {
		if err := s.Work(m); err != nil {
			t.Errorf("work: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		working.Wait()
	})
}

// until asks for a plan of segments that are not in use otherwise, until others take part
// in it: every one of so many.
func until(t *testing.T, s *remote.Store, r *connector.Model, others int) {
	t.Helper()
	limit, wait := time.Now().Add(time.Minute), 200*time.Millisecond
	for seed := uint64(1000); ; seed++ {
		q := connector.ParallelQuery{}
		for i := range uint64(others + 1) {
			tokens := text(seed*10+i, 600)
			spec, _ := r.Profile().MidSpec(len(tokens), 8)
			q.Segments = append(q.Segments, connector.SegmentIDs{Spec: spec, Tokens: tokens})
		}
		p, err := r.PlanSegments(t.Context(), &q)
		if err != nil {
			t.Fatal(err)
		}
		if p.ID != 0 {
			if err := r.EndPlan(t.Context(), p.ID); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[uint32]bool{}
		for _, row := range p.Rows {
			seen[row.Worker] = true
		}
		if delete(seen, 0); len(seen) == others {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d others take part, want %d: %+v", len(seen), others, p)
		}
		// Its jobs are withdrawn meanwhile. Where that takes long, more of them would be in the way.
		<-time.After(wait)
		wait = min(2*wait, 5*time.Second)
	}
}

func registered(t *testing.T, c *connector.Client, m *refengine.Model[float32]) (*remote.Store, *connector.Model) {
	t.Helper()
	r, err := c.Register(m.Profile(), connector.Binding{Connector: "refengine test"})
	if err == nil {
		err = r.WaitReady(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return remote.New(t.Context(), c, r), r
}

// What three nodes' engines compute together is what one computes, bit for bit; in pieces,
// to the rounding of what is stored of the first ones. The state that was put together is
// saved, and another node decodes from it.
func TestServedByThreeNodesIsServedByOne(t *testing.T) {
	list := nodes(t, 200, "a", "b", "c")
	for i := range list {
		list[i].run(t)
	}
	for i, f := range families {
		if f.name != "GDN" && f.name != "GLA" && f.name != "Mamba2" {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			m := model(t, f.family, f.rope, []profile.DType{profile.BF16, profile.F16, profile.F32}[i%3])
			client := attached(t, list[0].socket())
			s, r := registered(t, client, m)
			works(t, list[1].socket(), m)
			works(t, list[2].socket(), m)
			until(t, s, r, 2)
			for _, pieces := range []bool{false, true} {
				request, got := shares(t, s, m, pieces)
				if !pieces {
					handOver(t, &list[2], m, s, request, got)
				}
			}
		})
	}
}

// shares serves requests of segments that nobody has, until others have computed some of
// one, in pieces where it is asked for, and given up nothing: whose engine is free in time is
// the machine's affair. What is answered is right each time. It returns the last one.
func shares(t *testing.T, s *remote.Store, m *refengine.Model[float32], pieces bool) (refengine.Request, *refengine.Result) {
	t.Helper()
	seed := uint64(10)
	if pieces {
		seed = 1 << 20
	}
	for limit := time.Now().Add(time.Minute); ; seed += 4 {
		request := refengine.Request{First: text(1, 30), Query: text(2, 9), Seam: 8}
		for k := range uint64(4) {
			request.Mid = append(request.Mid, text(seed+k, 600))
		}
		p := &remote.Parallel{Store: s, Pieces: pieces}
		got, want := serve(t, m, p, request), serve(t, m, refengine.NewMemory(m.Profile()), request)
		if !pieces && (!sameBits(got.Logits, want.Logits) || !sameState(got.State, want.State)) {
			t.Fatal("it differs from what one engine computes")
		}
		worst := 0.0
		for k := range want.Logits {
			worst = max(worst, math.Abs(float64(got.Logits[k]-want.Logits[k])))
		}
		computed, cuts, aborted := check(t, p, pieces)
		t.Logf("pieces %v: %d rows by others, %d cuts, logits differ by %.2g", pieces, computed, cuts, worst)
		if worst > 2e-3 {
			t.Fatalf("logits differ by %v", worst)
		}
		if computed > 0 && aborted == 0 && (!pieces || cuts > 0) {
			return request, got
		}
		if time.Now().After(limit) {
			t.Fatalf("%d rows were computed by others, %d aborted, %d cuts: %+v", computed, aborted, cuts, p.Last)
		}
	}
}

// check counts rows that others computed, in two pieces, or gave up.
func check(t *testing.T, p *remote.Parallel, pieces bool) (computed, cuts, aborted int) {
	t.Helper()
	for i, x := range p.Last.Rows {
		switch x {
		case wire.ProgressCommitted:
			computed++
		case wire.ProgressPiece:
			cuts++
		case wire.ProgressAborted:
			aborted++
		case 0, wire.ProgressLate: // the machine is busy: this engine has computed it
		default:
			t.Errorf("row %d: progress %d", i, x)
		}
	}
	for _, o := range p.Last.Plan.Own {
		if o.End < 600 && o.Begin == 0 && pieces && o.Row < len(p.Last.Rows) && p.Last.Plan.Rows[o.Row].Worker != 0 {
			cuts++
		}
	}
	return computed, cuts, aborted
}

// handOver saves the state of a request and has another node decode from it.
func handOver(t *testing.T, other *nodeSpec, m *refengine.Model[float32], s *remote.Store, r refengine.Request, served *refengine.Result) {
	t.Helper()
	if !served.State.Spliced {
		t.Fatal("a state of segments is not marked so")
	}
	prompt := r.Prompt()
	if err := s.Save(prompt, []int{len(prompt)}, []*refengine.State[float32]{served.State}); err != nil {
		t.Fatal(err)
	}
	there, model := registered(t, attached(t, other.socket()), m)
	hashes, _ := model.PrefixHashes(remote.BlockTokens, prompt, []int{len(prompt)})
	var state *refengine.State[float32]
	limit := time.Now().Add(20 * time.Second)
	for state == nil {
		c, ok, err := model.Load(t.Context(), hashes[0], connector.Spliced, connector.AcquireOptions{Wait: 10 * time.Second})
		switch {
		case err == nil && ok:
			state, err = there.Unfold(c)
			c.Release()
			if err != nil {
				t.Fatal(err)
			}
		case time.Now().After(limit):
			t.Fatalf("the checkpoint does not come: %v", err)
		default:
			<-time.After(10 * time.Millisecond)
		}
	}
	here := served.State.Clone()
	want, err := m.Decode(here, served.Logits, 8)
	if err != nil {
		t.Fatal(err)
	}
	state.Spliced = true
	got, err := m.Decode(state, served.Logits, 8)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the other node decodes %v, this one %v", got, want)
	}
}

// nodeEnv makes the test binary a node with an engine that takes jobs and never does one.
const nodeEnv = "SPLICED_TEST_NODE"

func TestMain(m *testing.M) {
	if spec := os.Getenv(nodeEnv); spec != "" {
		if err := holdJobs(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		return
	}
	os.Exit(m.Run())
}

func holdJobs(spec string) error {
	var n nodeSpec
	if err := json.Unmarshal([]byte(spec), &n); err != nil {
		return err
	}
	d, err := daemon.New(n.config(), daemon.Parts{})
	if err != nil {
		return err
	}
	go func() { _ = d.Run(context.Background()) }()
	<-d.Ready()
	c, err := connector.Open(connector.Options{Socket: n.socket(), Timeouts: connector.Timeouts{Lookup: 10 * time.Second, Attach: 10 * time.Second}})
	if err != nil {
		return err
	}
	ctx := context.Background()
	w, err := remoteModel()
	if err != nil {
		return err
	}
	r, err := c.Register(w.Profile(), connector.Binding{})
	if err != nil {
		return err
	}
	if err := r.WaitReady(ctx); err != nil {
		return err
	}
	for {
		jobs, err := r.WatchJobs(ctx, &connector.WorkerQuery{Jobs: 4, Pieces: true, Wait: time.Second})
		if err != nil {
			return err
		}
		for _, j := range jobs.New {
			fmt.Printf("job %d %d\n", j.ID, j.Tokens[0])
		}
	}
}

// remoteModel is the model that both processes have.
func remoteModel() (*refengine.Model[float32], error) {
	w, err := remoteWeights(profile.GDN, profile.Rope{}, profile.F32)
	if err != nil {
		return nil, err
	}
	return refengine.New[float32](w)
}

// A node that is killed while its engine computes costs its segments, which are computed
// at home: the answer is the same.
func TestANodeThatIsKilledCostsItsSegments(t *testing.T) {
	list := nodes(t, 200, "a", "b", "c")
	m, err := remoteModel()
	if err != nil {
		t.Fatal(err)
	}
	list[0].run(t)
	list[2].run(t)
	spec, _ := json.Marshal(list[1])
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), nodeEnv+"="+string(spec))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	kill := sync.OnceFunc(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	t.Cleanup(kill)
	s, r := registered(t, attached(t, list[0].socket()), m)
	works(t, list[2].socket(), m)
	until(t, s, r, 2)
	request := refengine.Request{First: text(1, 30), Query: text(2, 9), Seam: 8}
	first := map[string]bool{}
	for k := range uint64(6) {
		request.Mid = append(request.Mid, text(50+k, 600))
		first[fmt.Sprint(request.Mid[k][0])] = true
	}
	go func() { // kills as soon as it has one of these jobs
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if words := strings.Fields(lines.Text()); len(words) == 3 && first[words[2]] {
				kill()
				return
			}
		}
	}()
	p := &remote.Parallel{Store: s}
	got, want := serve(t, m, p, request), serve(t, m, refengine.NewMemory(m.Profile()), request)
	if !sameBits(got.Logits, want.Logits) || !sameState(got.State, want.State) {
		t.Error("it differs from what one engine computes")
	}
	aborted, committed := 0, 0
	for _, x := range p.Last.Rows {
		aborted += map[uint8]int{wire.ProgressAborted: 1, wire.ProgressLate: 1}[x]
		committed += map[uint8]int{wire.ProgressCommitted: 1}[x]
	}
	if aborted == 0 || committed == 0 {
		t.Errorf("%d rows were aborted or late, %d committed: %+v", aborted, committed, p.Last)
	}
}
