package view

import (
	"time"

	"github.com/spliced-kv/spliced/api"
)

// Cluster implements api.Node.
func (v *base) Cluster() api.Cluster {
	if v.o.Cluster == nil {
		return api.Cluster{}
	}
	return v.o.Cluster()
}

// clusterSeries are totals over all members. A series per member would be too many with 1,000
// members.
type clusterSeries struct {
	Own         int64 `prom:"cluster_own_names" help:"Objects that this node announces to the other cluster members."`
	Names       int64 `prom:"cluster_index_names" help:"Objects that other cluster members are believed to hold. An object held by two members counts twice."`
	Bytes       int64 `prom:"cluster_index_bytes" help:"Bytes of memory used by the index of other members' objects."`
	Incomplete  int   `prom:"cluster_index_incomplete" help:"Cluster members in use whose list of objects this node has not received completely yet."`
	Unusable    int   `prom:"cluster_unusable" help:"Live cluster members that this node does not use (another protocol version or secret), plus addresses that failed authentication in the last minute (another key)."`
	LeftAlone   int   `prom:"cluster_left_alone" help:"Cluster members in use from which nothing is fetched for now, after repeated failures or because they stopped answering."`
	QueuedBytes int64 `prom:"cluster_queued_bytes" help:"Bytes requested from other cluster members and not received yet."`
	Encrypted   int   `prom:"cluster_gossip_encrypted" help:"1 if gossip is encrypted, otherwise 0."`
	FilesFailed int   `prom:"cluster_files_failed" help:"1 while a changed keyring or certificate file cannot be used, so that the previous one stays in use; otherwise 0."`
}

type memberSeries struct {
	State string `label:"state"`
	Count int    `prom:"cluster_members" help:"Other cluster members, by state: alive, unreachable (not answering, its place is kept for a while), leaving (has announced that it leaves), failed (was unreachable until its place was given up) and left (after announcing it), the last two for 72 hours."`
}

// lagSeries exists once some member has reported its complete index.
type lagSeries struct {
	Seconds float64 `prom:"cluster_index_lag_seconds" help:"Age of the oldest complete list of objects received from a cluster member, in seconds."`
}

type certificateSeries struct {
	Ends float64 `prom:"cluster_certificate_end_time_seconds" help:"Expiry time of the certificate of the peers' port, in seconds since the Unix epoch."`
}

func (v *exporter) eachOfCluster(f func(any)) {
	for _, r := range v.o.Remotes {
		for _, c := range r.Counters() {
			f(c)
		}
	}
	if c := v.Cluster(); c.Enabled {
		eachOfMembers(&c, time.Now(), f)
	}
}

func eachOfMembers(c *api.Cluster, now time.Time, f func(any)) {
	states := []string{api.MemberAlive, api.MemberUnreachable, api.MemberLeaving, api.MemberFailed, api.MemberLeft}
	counts := map[string]int{}
	s := clusterSeries{
		Own: c.Own.Names, Names: c.Index.Names, Bytes: c.Index.Bytes, Encrypted: one(c.Encrypted), FilesFailed: one(c.FilesError != ""),
		Unusable: len(c.Rejected),
	}
	for i := range c.Members {
		m := &c.Members[i]
		if m.Self {
			continue
		}
		counts[m.State]++
		s.Unusable += one(m.State == api.MemberAlive && m.Unusable != "")
		s.Incomplete += one(m.Index != nil && !m.Index.Complete)
		if m.Fetch != nil {
			s.LeftAlone += one(m.Fetch.Open)
			s.QueuedBytes += m.Fetch.QueuedBytes
		}
	}
	f(&s)
	for _, state := range states {
		f(&memberSeries{state, counts[state]})
	}
	if lag, ok := c.Lag(now); ok {
		f(&lagSeries{lag.Seconds()})
	}
	if c.Certificate != nil {
		f(&certificateSeries{float64(c.Certificate.UnixMilli()) / 1e3})
	}
}
