package gpuipctest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// AcceleratorConformance checks what an accelerator does in addition to a Device, which
// Conformance checks. It calls the function open once per subtest. This function must make
// sure that both devices are closed. The accelerator attaches regions of the host device.
func AcceleratorConformance(t *testing.T, open func(t testing.TB) (gpuipc.Accelerator, gpuipc.Device)) {
	for _, part := range []struct {
		name string
		test func(r *accRig)
	}{
		{"uploads and downloads", testTransfers},
		{"bad transfers change nothing", testBadTransfers},
		{"transfers at once", testConcurrentTransfers},
		{"an attached region ends once", testDetach},
		{"compose all", testComposeAll},
		{"rotate all", testRotateAll},
		{"a bad job among good ones changes nothing", testBadAmongGood},
		{"an ended context stops transfers", testEndedTransfers},
	} {
		t.Run(part.name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %#x", seed)
			acc, host := open(t)
			rng := rand.New(rand.NewPCG(seed, 0))
			r := &accRig{rig: &rig{T: t, dev: acc, rng: rng}, acc: acc, host: &rig{T: t, dev: host, rng: rng}}
			part.test(r)
		})
	}
}

// accRig is an accelerator and a host device, with a region of each.
type accRig struct {
	*rig
	acc  gpuipc.Accelerator
	host *rig
}

// attach makes regions of n random bytes on both devices. The host's region stays attached
// until the test ends.
func (r *accRig) attach(n int64) {
	r.Helper()
	r.fresh(n)
	r.host.fresh(n)
	detach, err := r.acc.AttachHost(r.host.region)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := detach(); err != nil {
			r.Error(err)
		}
	})
}

func (r *accRig) checkBoth(what string) {
	r.Helper()
	r.check(what + ", device")
	r.host.check(what + ", host")
}

func testTransfers(r *accRig) {
	const c = gpuipc.ChunkBytes
	sizes := []int64{0, 1, 8, 4095, c - 1, c, c + 1, 2*c + 5, r.rng.Int64N(2 * c)}
	most := int64(3 * c)
	if !testing.Short() { // more than devices move in one piece
		most = 10 * c
		sizes = append(sizes, 9*c+7)
	}
	r.attach(most)
	for _, n := range sizes {
		r.next, r.host.next = 0, 0
		dev, host := r.object(n, 1), r.host.object(n, 1)
		digests := make([]uint64, gpuipc.Chunks(n))
		if err := r.acc.Upload(r.Context(), dev, host, digests); err != nil {
			r.Fatalf("upload of %d bytes: %v", n, err)
		}
		r.expect(dev, r.host.bytes(host))
		r.checkBoth("upload")
		checkDigests(r.rig, r.bytes(dev), digests, gpuipc.DigestBytes)
		r.next, r.host.next = 0, 0
		dev, host = r.object(n, 1), r.host.object(n, 1)
		clear(digests)
		if err := r.acc.Download(r.Context(), host, dev, digests); err != nil {
			r.Fatalf("download of %d bytes: %v", n, err)
		}
		r.host.expect(host, r.bytes(dev))
		r.checkBoth("download")
		checkDigests(r.rig, r.bytes(dev), digests, gpuipc.DigestBytes)
		if err := errors.Join(r.acc.Upload(r.Context(), dev, host, nil), r.acc.Download(r.Context(), host, dev, nil)); err != nil {
			r.Fatalf("%d bytes without digests: %v", n, err)
		}
	}
	r.checkBoth("in the end")
}

func testBadTransfers(r *accRig) {
	r.attach(1 << 16)
	other, err := r.host.dev.NewRegion(gpuipc.RegionSpec{Name: "other", Bytes: 4096, Access: gpuipc.ClientWrites})
	if err != nil {
		r.Fatal(err)
	}
	defer other.Close()
	size := r.region.Bytes()
	one := []gpuipc.Extent{{Off: 0, Len: 100}}
	for _, c := range []struct {
		name    string
		dev     gpuipc.Ref
		host    gpuipc.Ref
		digests int
	}{
		{"shorter host", r.at(0, 100), r.host.at(0, 99), 1},
		{"longer host", r.at(0, 100), r.host.at(0, 101), 1},
		{"device past its end", r.at(size-99, 100), r.host.at(0, 100), 1},
		{"host past its end", r.at(0, 100), r.host.at(r.host.region.Bytes()-99, 100), 1},
		{"negative offset", r.at(-1, 100), r.host.at(0, 100), 1},
		{"too few digests", r.at(0, 100), r.host.at(0, 100), 0},
		{"too many digests", r.at(0, 100), r.host.at(0, 100), 2},
		{"a host region that is not attached", r.at(0, 100), gpuipc.Ref{Region: other, Extents: one}, 1},
		{"the device's region as the host's", r.at(0, 100), r.at(200, 100), 1},
		{"the host's region as the device's", r.host.at(0, 100), r.host.at(200, 100), 1},
		{"no region", gpuipc.Ref{Extents: one}, r.host.at(0, 100), 1},
		{"no host region", r.at(0, 100), gpuipc.Ref{Extents: one}, 1},
		{"a foreign region", gpuipc.Ref{Region: &foreignRegion{r.region}, Extents: one}, r.host.at(0, 100), 1},
	} {
		digests := make([]uint64, c.digests)
		r.refuses("upload: "+c.name, r.acc.Upload(r.Context(), c.dev, c.host, digests))
		r.host.refuses("download: "+c.name, r.acc.Download(r.Context(), c.host, c.dev, digests))
		r.checkBoth(c.name)
	}
	r.refuses("digests of the host's region", r.acc.Digests(r.Context(), r.host.at(0, 100), make([]uint64, 1)))
	r.host.refuses("digests of the device's region", r.host.dev.Digests(r.Context(), r.at(0, 100), make([]uint64, 1)))
	twice := []gpuipc.Extent{{Off: 0, Len: 10}, {Off: 5, Len: 10}}
	r.refuses("upload written twice", r.acc.Upload(r.Context(), gpuipc.Ref{Region: r.region, Extents: twice}, r.host.at(0, 20), nil))
	r.host.refuses("download written twice", r.acc.Download(r.Context(), gpuipc.Ref{Region: r.host.region, Extents: twice}, r.at(0, 20), nil))
}

func testConcurrentTransfers(r *accRig) {
	const transfers = 8
	const n = 5*gpuipc.ChunkBytes/4 + 13
	r.attach(transfers * (n + 65536))
	var dev, host [transfers]gpuipc.Ref
	var digests [transfers][]uint64
	var errs [transfers]error
	for i := range transfers {
		dev[i], host[i] = r.object(n, 1), r.host.object(n, 1)
		digests[i] = make([]uint64, gpuipc.Chunks(n))
	}
	var group sync.WaitGroup
	for i := range transfers {
		group.Go(func() {
			if i%2 == 0 {
				errs[i] = r.acc.Upload(context.Background(), dev[i], host[i], digests[i])
			} else {
				errs[i] = r.acc.Download(context.Background(), host[i], dev[i], digests[i])
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		r.Fatal(err)
	}
	for i := range transfers {
		if i%2 == 0 {
			r.expect(dev[i], r.host.bytes(host[i]))
		} else {
			r.host.expect(host[i], r.bytes(dev[i]))
		}
		checkDigests(r.rig, r.bytes(dev[i]), digests[i], gpuipc.DigestBytes)
	}
	r.checkBoth("transfers at once")
}

func testDetach(r *accRig) {
	r.fresh(4096)
	r.host.fresh(4096)
	if _, err := r.acc.AttachHost(r.region); !errors.Is(err, gpuipc.ErrInvalid) {
		r.Errorf("attach of a region that is not a host's: %v", err)
	}
	for range 2 { // a region can come back
		detach, err := r.acc.AttachHost(r.host.region)
		if err != nil {
			r.Fatal(err)
		}
		if _, err := r.acc.AttachHost(r.host.region); !errors.Is(err, gpuipc.ErrInvalid) {
			r.Errorf("attached twice: %v", err)
		}
		if err := r.acc.Upload(r.Context(), r.at(0, 100), r.host.at(0, 100), nil); err != nil {
			r.Error(err)
		}
		if err := detach(); err != nil {
			r.Error(err)
		}
		if err := r.acc.Upload(r.Context(), r.at(0, 100), r.host.at(0, 100), nil); !errors.Is(err, gpuipc.ErrInvalid) {
			r.Errorf("upload from a region that was detached: %v", err)
		}
	}
}

func testComposeAll(r *accRig) {
	r.fresh(4 << 20)
	for range r.rounds(20) {
		r.next = 0
		var cases []*composeCase
		var jobs []gpuipc.ComposeJob
		for range r.rng.IntN(8) {
			c := r.randomCompose()
			cases, jobs = append(cases, c), append(jobs, c.job)
		}
		if err := r.acc.ComposeAll(r.Context(), jobs); err != nil {
			r.Fatal(err)
		}
		for _, c := range cases {
			r.composed(c)
		}
		r.check("compose all")
	}
}

func testRotateAll(r *accRig) {
	r.fresh(1 << 20)
	for range r.rounds(30) {
		r.next = 0
		var jobs []gpuipc.RotateJob
		var sources [][]byte
		for range r.rng.IntN(6) {
			j, src := r.randomRotate()
			j.Dst.Rows = r.object(int64(len(src)), j.Type.Size())
			jobs, sources = append(jobs, *j), append(sources, src)
		}
		if len(jobs) > 0 { // one table lies behind everything else
			j, src := r.randomRotate()
			r.randomTable(j)
			jobs, sources = append(jobs, *j), append(sources, src)
		}
		if err := r.acc.RotateAll(r.Context(), jobs); err != nil {
			r.Fatal(err)
		}
		r.after = r.get(r.whole())
		for i := range jobs {
			r.checkRows(&jobs[i], sources[i])
		}
		r.check("rotate all")
	}
}

func testBadAmongGood(r *accRig) {
	r.fresh(1 << 16)
	state := func(off int64) gpuipc.ComposeJob {
		return gpuipc.ComposeJob{Transition: kernel.Scalar, Heads: 1, DK: 4, DV: 4, From: r.at(off, 64), Out: r.at(off+64, 64)}
	}
	short, over := state(512), state(512)
	short.From = r.at(512, 60)
	over.Out = r.at(64, 64) // what the first job writes
	reads := state(512)
	reads.From = r.at(64, 64)
	for name, bad := range map[string]gpuipc.ComposeJob{"short": short, "written by two": over, "written by one, read by another": reads} {
		r.refuses("compose all: "+name, r.acc.ComposeAll(r.Context(), []gpuipc.ComposeJob{state(0), bad}))
	}
	rows := func(off int64) gpuipc.RotateJob {
		return gpuipc.RotateJob{Rows: 2, Heads: 2, Dim: 4, Type: kernel.F16, Src: r.at(off, 32), Dst: gpuipc.Scatter{Rows: r.at(off+32, 32)}}
	}
	odd, both := rows(512), rows(512)
	odd.Turn = &gpuipc.Rotation{Dims: 3}
	both.Dst.Rows = r.at(32, 32)
	for name, bad := range map[string]gpuipc.RotateJob{"odd": odd, "written by two": both} {
		r.refuses("rotate all: "+name, r.acc.RotateAll(r.Context(), []gpuipc.RotateJob{rows(0), bad}))
	}
	if err := errors.Join(r.acc.ComposeAll(r.Context(), nil), r.acc.RotateAll(r.Context(), nil)); err != nil {
		r.Errorf("no jobs: %v", err)
	}
}

func testEndedTransfers(r *accRig) {
	r.attach(1 << 16)
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	for name, err := range map[string]error{
		"upload":      r.acc.Upload(ctx, r.at(0, 100), r.host.at(0, 100), make([]uint64, 1)),
		"download":    r.acc.Download(ctx, r.host.at(0, 100), r.at(0, 100), make([]uint64, 1)),
		"compose all": r.acc.ComposeAll(ctx, []gpuipc.ComposeJob{{Transition: 1, Heads: 1, DK: 1, DV: 1, From: r.at(0, 4), Out: r.at(64, 4)}}),
		"rotate all":  r.acc.RotateAll(ctx, []gpuipc.RotateJob{{Rows: 1, Heads: 1, Dim: 2, Type: 1, Src: r.at(0, 8), Dst: gpuipc.Scatter{Rows: r.at(64, 8)}}}),
	} {
		if !errors.Is(err, context.Canceled) {
			r.Errorf("%s: %v", name, err)
		}
	}
	r.checkBoth("after transfers that never began")
}

// ShareConformance checks that another process can map what this process shares. The
// function give must pass the share to a process that adds one to every byte, and must
// return when that is done. Only tests that have such a process call ShareConformance.
func ShareConformance(t *testing.T, acc gpuipc.Accelerator, way gpuipc.Way, give func(gpuipc.Share)) {
	region, err := acc.NewRegion(gpuipc.RegionSpec{Name: "shared", Bytes: 1 << 20, Access: gpuipc.ClientWrites, Way: way})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := region.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := make([]byte, region.Bytes())
	for i := range b {
		b[i] = byte(i >> 3)
	}
	all := gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Len: region.Bytes()}}}
	if err := acc.Store(t.Context(), all, b); err != nil {
		t.Fatal(err)
	}
	share, err := region.(gpuipc.SharedRegion).Share(way)
	if err != nil {
		t.Fatal(err)
	}
	if share.Way != way || share.Device != acc.UUID() || share.Bytes() != region.Bytes() {
		t.Errorf("share %+v of a region of %d bytes", share, region.Bytes())
	}
	give(share)
	got := make([]byte, len(b))
	if err := acc.Load(t.Context(), got, all); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		if got[i] != b[i]+1 {
			t.Fatalf("byte %d is %d, the other process made it of %d", i, got[i], b[i])
		}
	}
}
