package tiering

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// SegmentFilter selects segments; zero fields select all.
type SegmentFilter struct {
	Tenant  *tier.TenantID
	Profile tier.ProfileID
	Prefix  string // lower-case hex digits that the key begins with
}

// SegmentInfo is one segment, published or being filled.
type SegmentInfo struct {
	Key       profile.SegmentKey
	Profile   tier.ProfileID
	Model     string
	Tenant    tier.TenantID
	Spec      profile.SegmentSpec
	Published bool
	Promoting bool // the store is filling it from the lower tier
	Place     tier.Place
	Lower     tier.Level // level of its copy in the lower tier; 0 = no copy
	HBM       int        // number of ranks with a copy in HBM
	Interior  int
	Bytes     int64 // sum of the layouts of all ranks
	Packed    profile.Packed
	Leases    int // active and expired
	Hits      uint64
	Publisher string
	Created   time.Time
	LastUsed  time.Time
}

// SegmentDetail is a segment with the layout of each rank's share.
type SegmentDetail struct {
	SegmentInfo
	Ranks   int
	Layout  profile.Layout
	Extents [][]gpuipc.Extent // by rank; must not be written
	Tokens  []uint32          // token ids; must not be written
}

// CheckpointFilter selects checkpoints; zero fields select all.
type CheckpointFilter struct {
	Tenant  *tier.TenantID
	Profile tier.ProfileID
	Prefix  string // as in SegmentFilter
}

// CheckpointInfo is one node of the tree of checkpoints, published or being filled.
type CheckpointInfo struct {
	Hash      profile.PrefixHash
	Parent    profile.PrefixHash  // zero = none
	ParentOf  tier.CheckpointKind // kind of the parent
	Kind      tier.CheckpointKind
	Profile   tier.ProfileID
	Model     string
	Tenant    tier.TenantID
	Published bool
	Stripped  bool       // its rows are in memory but not its states; no lookup finds it
	Promoting bool       // as in SegmentInfo
	Lower     tier.Level // as in SegmentInfo
	HBM       int        // as in SegmentInfo
	Begin     int        // this node stores the rows of tokens [Begin, Tokens)
	Tokens    int
	Bytes     int64
	Leases    int
	Children  int
	Publisher string
	Created   time.Time
	LastUsed  time.Time
}

// PoolInfo is the account of one pool. Its sizes count pages, and 4 bytes for each token id
// of a segment. The sizes in the field Tenants also count the records of objects.
type PoolInfo struct {
	Name             string
	Place            tier.Place
	Device           tier.DeviceID // for a pool of HBM
	CapacityBytes    int64
	UsedBytes        int64
	PendingBytes     int64
	LeasedBytes      int64
	QuarantinedBytes int64
	DemotingBytes    int64
	SavedBytes       int64 // what leases save by sharing objects, see stats.Counters
	DirtyBytes       int64 // of objects that must be written to the lower tier before eviction
	ReadAheadBytes   int64 // of objects read ahead, or being read ahead, that no client has used yet
	PageBytes        int
	Objects          int
	Tenants          []TenantInfo
}

// TenantInfo is one tenant's share of a pool. The quota covers all pools and the lower
// tier together.
type TenantInfo struct {
	ID         tier.TenantID
	Name       string
	UsedBytes  int64 // as counted by its quota: pages, token ids and records
	LowerBytes int64 // in the lower tier, segments and checkpoints
	QuotaBytes int64 // 0 = none
}

// ProfileInfo is one registered profile.
type ProfileInfo struct {
	ID          tier.ProfileID
	Profile     *profile.Profile
	Segments    int // published, of all tenants
	Checkpoints int
}

// Segments lists up to limit segments in ascending order of key, beginning with the first
// key greater than the key after (nil = from the start). It holds the lock for one 4096th
// of the catalog at a time, so a page is not a snapshot: it may or may not include segments
// that are added or removed meanwhile.
func (s *Store) Segments(f SegmentFilter, after *profile.SegmentKey, limit int) []SegmentInfo {
	var page []SegmentInfo
	first, last := shards(f.Prefix, (*[32]byte)(after))
	for shard := first; shard <= last && len(page) < limit; shard++ {
		s.cat.Mu.Lock()
		found := s.cat.Objects.Names.Segments.Sorted(shard, (*[32]byte)(after))
		s.cat.Mu.Unlock()
		s.cat.Mu.Each(len(found), catalog.HoldRows, func(i int) {
			if o := found[i]; o.Linked() && len(page) < limit && f.match(o) {
				page = append(page, s.segmentInfoLocked(o))
			}
		})
	}
	return page
}

// shards returns the first and the last shard of the index that may have a key that begins
// with the hex prefix and is greater than the key after (nil = any key).
func shards(prefix string, after *[32]byte) (first, last int) {
	low, high := [32]byte{}, [32]byte(bytes.Repeat([]byte{0xff}, 32))
	for i := range min(len(prefix), 4) { // the digits that select a shard
		digit := strings.IndexByte("0123456789abcdef", prefix[i])
		if digit < 0 {
			return 0, -1
		}
		shift := 4 * (1 - i%2)
		low[i/2] |= byte(digit << shift)
		high[i/2] &^= byte((15 - digit) << shift)
	}
	first, last = index.Shard(&low), index.Shard(&high)
	if after != nil {
		first = max(first, index.Shard(after))
	}
	return first, last
}

func (f *SegmentFilter) match(o *objects.Object) bool {
	return (f.Tenant == nil || *f.Tenant == o.Tenant.ID) && (f.Profile == 0 || f.Profile == o.Profile.ID) &&
		tier.HasHexPrefix(&o.Key, f.Prefix)
}

func (s *Store) segmentInfoLocked(o *objects.Object) SegmentInfo {
	below, _ := s.cat.Objects.Below.Of(o)
	place := s.cat.Place
	if o.Resident != nil {
		place = tier.PlaceHBM
	}
	return SegmentInfo{
		HBM:       o.ResidentRanks(),
		Promoting: o.Fill != nil && o.Fill.Promoted, Lower: below.Level,
		Key: o.Key, Profile: o.Profile.ID, Model: o.Profile.Model, Tenant: o.Tenant.ID, Spec: o.Spec,
		Published: o.Published(), Place: place, Interior: o.Tokens(), Bytes: o.RankBytes * int64(len(o.Shares)), Packed: o.Packed, Leases: o.Leases + o.Expired,
		Hits: o.Hits, Publisher: o.Publisher, Created: o.Created, LastUsed: o.Used,
	}
}

// Segment returns a segment of any tenant.
func (s *Store) Segment(key profile.SegmentKey) (SegmentDetail, bool) {
	s.cat.Mu.Lock()
	o := s.cat.Objects.Names.Segments.Find((*[32]byte)(&key))
	if o == nil {
		s.cat.Mu.Unlock()
		return SegmentDetail{}, false
	}
	d := SegmentDetail{SegmentInfo: s.segmentInfoLocked(o), Ranks: len(o.Shares), Tokens: o.TokenIDs}
	for i := range o.Shares {
		d.Extents = append(d.Extents, o.Shares[i].Extents)
	}
	d.Layout = o.Layout().Layout // changed by packing
	s.cat.Mu.Unlock()
	return d, true
}

// Checkpoints lists checkpoints like Segments, in ascending order of hash. A page may be
// longer than limit, since it includes all checkpoints with its last hash.
func (s *Store) Checkpoints(f CheckpointFilter, after *profile.PrefixHash, limit int) []CheckpointInfo {
	var page []CheckpointInfo
	first, last := shards(f.Prefix, (*[32]byte)(after))
	for shard := first; shard <= last && len(page) < limit; shard++ {
		s.cat.Mu.Lock()
		found := s.cat.Objects.Names.Checkpoints.Sorted(shard, (*[32]byte)(after))
		s.cat.Mu.Unlock()
		s.cat.Mu.Each(len(found), catalog.HoldRows, func(i int) {
			if len(page) >= limit {
				return
			}
			for o := s.cat.Objects.Names.Checkpoints.Find(&found[i].Key); o != nil && tier.HasHexPrefix(&o.Key, f.Prefix); o = o.Sibling {
				if (f.Tenant == nil || *f.Tenant == o.Tenant.ID) && (f.Profile == 0 || f.Profile == o.Profile.ID) {
					page = append(page, s.checkpointInfoLocked(o))
				}
			}
		})
	}
	return page
}

func (s *Store) checkpointInfoLocked(o *objects.Object) CheckpointInfo {
	below, _ := s.cat.Objects.Below.Of(o)
	return CheckpointInfo{
		HBM:       o.ResidentRanks(),
		Promoting: o.Fill != nil && o.Fill.Promoted || o.Phase == objects.Stripped && s.move.Promotions.PromotionLocked(o.Label()) != nil, Lower: below.Level,
		Hash: o.Key, Parent: o.Extends, ParentOf: o.ExtendsKind, Kind: o.Kind, Profile: o.Profile.ID, Model: o.Profile.Model, Tenant: o.Tenant.ID,
		Published: o.Published(), Stripped: o.Phase == objects.Stripped, Begin: o.Begin, Tokens: o.End, Bytes: o.Bytes, Leases: o.Leases + o.Expired,
		Children: o.Children, Publisher: o.Publisher, Created: o.Created, LastUsed: o.Used,
	}
}

// Pools returns the public and the private pool of memory, in this order, then the pools
// of each device.
func (s *Store) Pools() []PoolInfo {
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	pools := slices.Clone(s.cat.Objects.Pools[:])
	for _, h := range s.hbm {
		pools = append(pools, h.Pools()...)
	}
	infos := make([]PoolInfo, 0, len(pools))
	for _, p := range pools {
		place, pageBytes, on := s.cat.Place, s.cat.Config.PageBytes, tier.DeviceID(0)
		if p.Device != nil {
			on = p.Device.ID
			place, pageBytes = tier.PlaceHBM, s.hbm.Of(on).PageBytes()
		}
		info := PoolInfo{
			Name: p.Name, Place: place, Device: on, CapacityBytes: p.Budget, UsedBytes: p.Used,
			PendingBytes: p.Bytes[objects.ClassPending], LeasedBytes: p.Bytes[objects.ClassLeased],
			QuarantinedBytes: p.Bytes[objects.ClassQuarantined], DemotingBytes: p.Bytes[objects.ClassDemoting] + p.Bytes[objects.ClassOffloading],
			SavedBytes: p.Saved, DirtyBytes: p.Dirty.Bytes, ReadAheadBytes: p.AheadBytes,
			PageBytes: pageBytes, Objects: p.Objects,
		}
		for _, t := range s.cat.Objects.Tenants {
			info.Tenants = append(info.Tenants, TenantInfo{t.ID, t.Name, t.Used[p.Number], s.cat.Objects.Below.Used(t), t.QuotaBytes})
		}
		slices.SortFunc(info.Tenants, func(a, b TenantInfo) int { return int(a.ID) - int(b.ID) })
		infos = append(infos, info)
	}
	return infos
}

// Profiles lists the registered profiles in order of their ids.
func (reg *registry) Profiles() []ProfileInfo {
	reg.cat.Mu.Lock()
	defer reg.cat.Mu.Unlock()
	var infos []ProfileInfo
	for _, p := range *reg.cat.Profiles.Load() {
		infos = append(infos, ProfileInfo{p.ID, p.Profile, p.Segments, p.Checkpoints})
	}
	return infos
}

// EvictedBelow records that the lower tier has evicted an entry of a model. If the
// parameter quota is true, the reason is the tenant's quota, otherwise a full tier.
// EvictedBelow does not take the store's lock.
func (s *Store) EvictedBelow(e *tier.Entry, model string, quota bool) {
	d := decision.Decision{
		At: s.cat.Config.Now(), What: decision.Evict, Why: decision.ForDiskRoom, Name: e.Name, Tenant: e.Tenant,
		Begin: e.Begin, End: e.End, Bytes: e.Bytes, Model: model, In: tier.PlaceDisk,
	}
	if quota {
		d.Why = decision.ForDiskQuota
	}
	if e.Kind == 0 {
		d.Begin, d.End = 0, e.End-e.Begin
	}
	if p := s.cat.Registered(e.Fingerprint); p != nil {
		if p.Trial {
			return
		}
		d.Profile = p.ID
	}
	s.cat.Decisions.Note(d)
}

// Spare returns how many more bytes of a kind of object may be stored in memory for a
// tenant without an eviction and without making the pool short of free bytes.
func (s *Store) Spare(kind tier.CheckpointKind, tenant tier.TenantID) int64 {
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	t := s.cat.Objects.Tenants[tenant]
	if t == nil {
		return 0
	}
	p := s.cat.Objects.Pools[objects.PoolNumber(kind)]
	spare := int64(s.cat.Config.HighWater*float64(p.Budget)) - p.Used
	if t.QuotaBytes > 0 {
		spare = min(spare, -s.cat.Objects.Quotas.Over(t, 0))
	}
	return max(0, spare)
}

// Durations returns the store's histograms: those of leases and evictions, and those of
// fetches from each tier that the store has.
func (s *Store) Durations() []prometheus.Histogram {
	list := []prometheus.Histogram{s.cat.Durations.Released, s.cat.Durations.Expired, s.cat.Durations.Evicted, s.cat.Durations.Reused}
	if s.cat.Config.Lower != nil {
		list = append(list, s.cat.Durations.Fetched.Disk)
	}
	if s.cat.Config.Remote != nil {
		list = append(list, s.cat.Durations.Fetched.Peer)
	}
	if len(s.hbm) > 0 {
		list = append(list, s.cat.Durations.Fetched.HBM)
	}
	return list
}
