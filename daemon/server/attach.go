package server

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/budget"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/queue"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/daemon/slots"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Bounds of one connection that have no setting; generous guesses.
const (
	maxBindings = 64      // profile requests
	maxProbe    = 1 << 24 // tokens for which an engine may state sizes
	minShare    = 64 * settings.KiB
)

// minVersion and maxVersion are the protocol versions that this daemon speaks.
const (
	minVersion = wire.Version
	maxVersion = wire.Version
)

// features returns the bits of the protocol features that this daemon offers.
func (s *Server) features() uint64 {
	const always = wire.FeatureCRC32Digests | wire.FeaturePrompt | wire.FeatureEstimates | wire.FeatureKnown | wire.FeatureRows | wire.FeaturePacked | wire.FeatureBuffered | wire.FeatureSplices |
		wire.FeaturePrimers | wire.FeatureLosses | wire.FeatureLookup
	if !s.gpus.Serving() {
		return always
	}
	return always | wire.FeatureDevice
}

// attachment is the state that hello and profile requests add to a connection.
type attachment struct {
	// Fixed after hello.
	uid      uint32
	client   string
	tenants  []uint32
	names    []string
	holders  budget.Holders // for whom its profiles count
	session  *tiering.Session
	slots    *slots.Slots
	staging  gpuipc.Region
	features uint64 // protocol features that hello has agreed on
	trial    bool   // is the trial client, which tests the daemon
	// stagingBytes and slotBytes are as granted.
	stagingBytes int64
	slotBytes    int64

	mapped    *budget.MappedBy // accounts for the addresses of registered memory
	attaching atomic.Bool      // an attach-device request was accepted or is running
	// registering counts register-device requests in flight.
	registering atomic.Int32
	gpu         atomic.Pointer[attachedGPU] // set once, by attach-device

	claims claims // reuse that the client may report

	mu struct {
		sync.Mutex
		bindings []binding
	}
}

// has reports whether the connection uses a feature of the protocol.
func (a *attachment) has(feature uint64) bool { return a.features&feature != 0 }

// needs refuses a section of a request if the connection does not use the section's feature.
func (t *task) needs(feature uint64, present bool, section string) error {
	if present && !t.at.has(feature) {
		return codes.Refuse(wire.Invalid, "%s: the connection has not asked for that feature", section)
	}
	return nil
}

// binding is one profile request. Its memory id is its index plus 1.
type binding struct {
	profile     tier.ProfileID
	fingerprint profile.Fingerprint
	engine      string
	blockTokens uint32
	memory      *plan.EngineMemory // nil = none
}

// attachOps has the operations that attach a client and bind its profiles: hello and profile.
type attachOps struct{ *task }

// hello answers the first request of a connection: protocol version, tenants and memory. It
// attaches the connection.
func (t attachOps) hello() (wire.Message, error) {
	c, s := t.conn, t.conn.server
	var m wire.HelloRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	if m.MinVersion > maxVersion || m.MaxVersion < minVersion {
		return nil, codes.Refuse(wire.Unsupported, "versions %d to %d, this daemon speaks %d to %d", m.MinVersion, m.MaxVersion, minVersion, maxVersion)
	}
	reply := &wire.HelloReply{
		Version: maxVersion, Features: m.Features & s.features(), Connection: c.id, BootEpoch: s.epoch,
		ArenaBytes: uint64(s.store.Arena().Bytes()),
		MaxFrame:   wire.MaxFrame, MaxInFlight: uint32(s.config.MaxInFlight), Server: s.title,
	}
	a := &attachment{
		uid: c.peer.UID, client: m.Client, mapped: s.mapped.By(c.peer.UID), features: reply.Features, trial: m.Client == profile.TrialClient,
	}
	for _, want := range m.Tenants {
		granted, err := s.grant(want)
		if err != nil {
			s.wrongToken(&c.peer, want.Name)
			return nil, err
		}
		a.tenants = append(a.tenants, uint32(granted.ID))
		a.names = append(a.names, granted.Name)
		reply.Tenants = append(reply.Tenants, wire.TenantGrant{ID: uint32(granted.ID), Salt: granted.Salt})
	}
	a.holders = budget.HoldersOf(c.id, a.uid, a.tenants)
	if err := a.open(s, c.id, &m); err != nil {
		return nil, err
	}
	reply.StagingBytes, reply.SlotBytes = uint64(a.stagingBytes), uint64(a.slotBytes)
	if err := t.exportAll(a); err != nil {
		a.session.Close()
		a.close(s)
		a.closeShared(s, false)
		return nil, err
	}
	if a.has(wire.FeatureDevice) {
		c.sock.AllowDescriptors(wire.MaxChunks) // before the reader waits for the next frame, which may carry descriptors
	}
	of := queue.User{UID: a.uid}
	if len(a.tenants) > 0 {
		of.Tenant = a.tenants[0]
	}
	s.queue.Join(&c.lane, of)
	c.deviceLanes = make([]queue.Lane[*task], len(s.deviceQueues))
	for i, q := range s.deviceQueues {
		q.Join(&c.deviceLanes[i], of)
	}
	c.attached.Store(a)
	c.admitted()
	c.tellAttached(a)
	return reply, c.sock.SetRecvTimeout(0)
}

// grant checks one tenant's token. It compares the digest of every token, so that the time it takes
// reveals nothing about the tokens.
func (s *Server) grant(want wire.TenantName) (*tiering.Tenant, error) {
	name := cmp.Or(want.Name, settings.DefaultTenant)
	shown := sha256.Sum256([]byte(want.Token))
	known := s.tokens.Load()
	found := -1
	for i := range s.tenants {
		if s.tenants[i].Name == name && (known.open[i] || subtle.ConstantTimeCompare(shown[:], known.sums[i][:]) == 1) {
			found = i
		}
	}
	if found < 0 {
		return nil, codes.Refuse(wire.Denied, "tenant %q: unknown, or another token", name)
	}
	return &s.tenants[found], nil
}

// open creates the connection's staging and slots, within the budget of all connections.
func (a *attachment) open(s *Server, id uint64, m *wire.HelloRequest) (err error) {
	a.stagingBytes = wanted(m.StagingBytes, s.config.Staging, s.config.StagingMax)
	a.slotBytes = max(wanted(m.SlotBytes, s.config.Slots, s.config.SlotsMax), int64(s.config.PageBytes))
	if err := s.take(a.uid, &a.stagingBytes, &a.slotBytes); err != nil {
		return err
	}
	slotRegion, err := s.device.NewRegion(gpuipc.RegionSpec{
		Name: fmt.Sprintf("spliced-slots-%d", id), Bytes: a.slotBytes, Access: gpuipc.ClientViews, Huge: gpuipc.HugeNever})
	if err == nil {
		a.staging, err = s.device.NewRegion(gpuipc.RegionSpec{
			Name: fmt.Sprintf("spliced-staging-%d", id), Bytes: a.stagingBytes, Access: gpuipc.ClientWrites, Huge: gpuipc.HugeNever})
		if err != nil {
			err = errors.Join(err, slotRegion.Close())
		}
	}
	if err != nil {
		s.memory.GiveBack(a.uid, a.stagingBytes+a.slotBytes)
		return err
	}
	a.slots = slots.New(slotRegion, gpuipc.Extent{Len: slotRegion.Bytes()}, int(s.config.PageBytes), s.config.MaxLeases)
	a.session = s.store.NewSession(a.client)
	return nil
}

// wanted returns the size of memory for a client that asks for some bytes, in whole pages; 0 = the
// default. Clients refuse a region of another size than they are told.
func wanted(bytes uint64, def, most settings.Bytes) int64 {
	size := def
	if bytes > 0 {
		size = max(minShare, settings.Bytes(min(bytes, uint64(most))))
	}
	return wholePages(int64(size) + int64(os.Getpagesize()) - 1)
}

// wholePages rounds down to whole pages of memory.
func wholePages(bytes int64) int64 {
	return bytes - bytes%int64(os.Getpagesize())
}

// exportAll puts one descriptor per region into the reply: arena, slots and staging. The daemon
// keeps no descriptor of slots and staging.
func (t attachOps) exportAll(a *attachment) error {
	for _, r := range []gpuipc.Region{t.conn.server.store.Arena(), a.slots.Region(), a.staging} {
		h, err := r.Export()
		if err != nil {
			return err
		}
		t.send = append(t.send, h.File)
	}
	if err := errors.Join(gpuipc.Unshare(a.slots.Region()), gpuipc.Unshare(a.staging)); err != nil {
		return err
	}
	return t.conn.server.descriptors.Check(descriptors(t.send)...)
}

// close releases the client's bindings and memory. No request of the connection is running.
func (a *attachment) close(s *Server) {
	for i := range a.mu.bindings {
		b := &a.mu.bindings[i]
		s.releaseProfile(a.holders, b)
		if b.memory != nil {
			a.trouble(s, s.unmap(a, b.memory.Region))
		}
	}
	if l := a.gpu.Load(); l != nil {
		l.end(s, a)
		if !l.outlives() {
			a.closeGPU(s)
		}
	}
}

// closeShared releases slots and staging, which the client may still access. Pages that the client
// still maps would stay charged to the daemon. If the parameter discard is true, these pages are
// freed nevertheless. It is true once the client has closed its end, or once the time in which it
// had to do so is over.
func (a *attachment) closeShared(s *Server, discard bool) {
	for _, r := range []gpuipc.Region{a.slots.Region(), a.staging} {
		if discard {
			a.trouble(s, gpuipc.Discard(r))
		}
		a.trouble(s, r.Close())
	}
	s.memory.GiveBack(a.uid, a.stagingBytes+a.slotBytes)
}

func (a *attachment) trouble(s *Server, err error) {
	if err != nil {
		s.log.Error().Err(err).Str("client", a.client).Msg("cannot free memory of a connection")
	}
}

// closeGPU releases the connection's private memory on the device.
func (a *attachment) closeGPU(s *Server) {
	l := a.gpu.Load()
	if l == nil {
		return
	}
	l.closeRegion(func(err error) {
		s.log.Error().Err(err).Str("client", a.client).Msg("cannot free device memory of a connection")
	})
}

// profile registers a model's identity, and the engine memory that the request may come with.
func (t attachOps) profile(m *wire.ProfileRequest) (wire.Message, error) {
	if (m.MemoryBytes > 0) != (len(t.received) == 1) || len(t.received) > 1 {
		return nil, codes.Refuse(wire.Invalid, "%d descriptors with %d bytes of memory", len(t.received), m.MemoryBytes)
	}
	p, err := profile.Parse(m.Identity)
	if err != nil {
		return nil, err
	}
	if err := checkSizes(p, m); err != nil {
		return nil, err
	}
	if p.MaxError() > 0 && !t.at.has(wire.FeaturePacked) {
		return nil, codes.Refuse(wire.Unsupported, "a tolerance of %v, without the feature to read packed parts", p.MaxError())
	}
	reply, err := t.addProfile(p, m)
	if errors.Is(err, tier.ErrBusy) {
		// The removal of an unused profile walks the whole catalogue.
		t.rest = decoding(func(t attachOps, m *wire.ProfileRequest) (wire.Message, error) {
			t.conn.server.store.ReclaimProfile(t.ctx)
			return t.addProfile(p, m)
		})
		return nil, nil
	}
	return reply, err
}

// addProfile reserves a place for a profile, adds the profile to the store and binds it.
func (t attachOps) addProfile(p *profile.Profile, m *wire.ProfileRequest) (wire.Message, error) {
	s, holders, fingerprint := t.conn.server, t.at.holders, p.Fingerprint()
	if err := s.places.Take(holders, fingerprint); err != nil {
		return nil, err
	}
	id, err := s.store.AddProfile(p)
	if err != nil {
		s.places.GiveBack(holders, fingerprint)
		return nil, err
	}
	b := binding{profile: id, fingerprint: fingerprint, engine: m.Connector + " " + m.Engine, blockTokens: m.BlockTokens}
	number, err := t.bind(b, m)
	if err != nil {
		s.releaseProfile(holders, &b)
		return nil, err
	}
	return &wire.ProfileReply{Profile: uint32(id), Memory: number, Fingerprint: fingerprint}, nil
}

func (s *Server) releaseProfile(holders budget.Holders, b *binding) {
	s.store.ReleaseProfile(b.profile)
	s.places.GiveBack(holders, b.fingerprint)
}

// bind adds a binding, imports its memory and returns the memory's id, 0 if there is none. A client
// that lost the reply repeats its binding. The repetition takes no further room if it has no
// memory.
func (t attachOps) bind(b binding, m *wire.ProfileRequest) (memory uint32, err error) {
	s, a := t.conn.server, t.at
	a.mu.Lock()
	known, full := slices.Contains(a.mu.bindings, b), len(a.mu.bindings) >= maxBindings
	a.mu.Unlock()
	switch {
	case known && m.MemoryBytes == 0:
		s.releaseProfile(a.holders, &b)
		return 0, nil
	case full:
		return 0, errBindings
	case m.MemoryBytes > 0:
		if b.memory, err = t.importMemory(b.profile, m); err != nil {
			return 0, err
		}
	}
	a.mu.Lock()
	n := len(a.mu.bindings)
	if full = n >= maxBindings; !full { // other requests may have added bindings meanwhile
		a.mu.bindings = append(a.mu.bindings, b)
	}
	a.mu.Unlock()
	if full {
		if b.memory != nil {
			err = s.unmap(a, b.memory.Region)
		}
		return 0, errors.Join(errBindings, err)
	}
	t.tellRegistered(&b)
	if b.memory != nil {
		memory = uint32(n + 1)
	}
	return memory, nil
}

var errBindings = codes.Refuse(wire.Busy, "%d profile requests on one connection", maxBindings)

// checkSizes compares the sizes in bytes that the engine computed with the sizes of the profile.
// Two programs that disagree about a layout must not share memory.
func checkSizes(p *profile.Profile, m *wire.ProfileRequest) error {
	if m.ProbeTokens > maxProbe {
		return codes.Refuse(wire.Invalid, "sizes for %d tokens, at most %d", m.ProbeTokens, maxProbe)
	}
	n := int(m.ProbeTokens)
	if ours := uint64(p.SegmentLayout(n).Bytes); ours != m.SegmentBytes {
		return codes.Refuse(wire.Invalid, "segment of %d interior tokens: the engine has %d bytes, the daemon %d", n, m.SegmentBytes, ours)
	}
	if ours := uint64(p.CheckpointLayout(n).Bytes); ours != m.CheckpointBytes {
		return codes.Refuse(wire.Invalid, "checkpoint of %d rows: the engine has %d bytes, the daemon %d", n, m.CheckpointBytes, ours)
	}
	return nil
}

func (t attachOps) importMemory(id tier.ProfileID, m *wire.ProfileRequest) (*plan.EngineMemory, error) {
	if m.MemoryBytes > mostOneMemory {
		return nil, codes.Refuse(wire.Invalid, "memory of %d bytes", m.MemoryBytes)
	}
	file := os.NewFile(uintptr(t.received[0]), "engine memory")
	t.received = nil // file owns the descriptor
	region, err := t.mapMemory(gpuipc.Handle{File: file, Bytes: int64(m.MemoryBytes)})
	if err != nil {
		return nil, err
	}
	memory := &plan.EngineMemory{Region: region, BlockTokens: int(m.BlockTokens), Layers: memoryLayers(m.Memory)}
	g, err := t.conn.server.store.Geometry(id)
	if err == nil {
		err = g.CheckMemory(memory)
	}
	if err != nil {
		return nil, errors.Join(err, t.conn.server.unmap(t.at, region))
	}
	return memory, nil
}

// mapMemory maps memory of the client. It reserves the addresses, and the memory that the kernel
// needs for the mapping, from their budgets. It takes ownership of h.File.
func (t attachOps) mapMemory(h gpuipc.Handle) (gpuipc.Region, error) {
	s, a := t.conn.server, t.at
	if err := a.mapped.Take(h.Bytes); err != nil {
		h.File.Close()
		return nil, err
	}
	region, err := s.device.Import(h)
	if err == nil {
		// TakeFirst leaves a part of the budget to staging and slots, so that clients can always attach.
		if err = s.memory.TakeFirst(a.uid, gpuipc.MappingCost(region)); err != nil {
			err = errors.Join(err, region.Close())
		}
	}
	if err != nil {
		a.mapped.GiveBack(h.Bytes)
		return nil, err
	}
	return region, nil
}

// unmap undoes mapMemory.
func (s *Server) unmap(a *attachment, r gpuipc.Region) error {
	s.memory.GiveBack(a.uid, gpuipc.MappingCost(r))
	a.mapped.GiveBack(r.Bytes())
	return r.Close()
}

func memoryLayers(list []wire.MemoryLayer) []plan.EngineLayer {
	layers := make([]plan.EngineLayer, len(list))
	for i, l := range list {
		layers[i] = plan.EngineLayer{
			Layer: int(l.Layer), KBase: int64(l.KBase), VBase: int64(l.VBase), BlockStride: int64(l.BlockStride),
			KTokenStride: int64(l.KTokenStride), KHeadStride: int64(l.KHeadStride),
			VTokenStride: int64(l.VTokenStride), VHeadStride: int64(l.VHeadStride),
		}
	}
	return layers
}

// use returns the id of a profile, or an error if the connection has not registered it.
func (a *attachment) use(id uint32) (tier.ProfileID, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.mu.bindings {
		if a.mu.bindings[i].profile == tier.ProfileID(id) {
			return tier.ProfileID(id), nil
		}
	}
	return 0, codes.Refuse(wire.Invalid, "profile %d is not registered on this connection", id)
}

// memory returns the registered engine memory of a number, on the host or on a device.
func (a *attachment) memory(number uint32, id tier.ProfileID) (*plan.EngineMemory, error) {
	if l := a.gpu.Load(); l != nil && number >= firstDeviceMemory {
		return l.memory(number, id)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	i := int64(number) - 1
	if i < 0 || i >= int64(len(a.mu.bindings)) || a.mu.bindings[i].memory == nil {
		return nil, codes.Refuse(wire.Gone, "memory %d", number)
	}
	if b := &a.mu.bindings[i]; b.profile != id {
		return nil, codes.Refuse(wire.Invalid, "memory %d belongs to profile %d, not %d", number, b.profile, id)
	}
	return a.mu.bindings[i].memory, nil
}

// staged returns a reference to [off, off+bytes) of staging.
func (a *attachment) staged(off uint64, bytes int64) (gpuipc.Ref, error) {
	if bytes < 0 || off > uint64(a.stagingBytes) || bytes > a.stagingBytes-int64(off) {
		return gpuipc.Ref{}, codes.Refuse(wire.Invalid, "[%d, +%d) is not inside the staging of %d bytes", off, bytes, a.stagingBytes)
	}
	return gpuipc.Ref{Region: a.staging, Extents: []gpuipc.Extent{{Off: int64(off), Len: bytes}}}, nil
}
