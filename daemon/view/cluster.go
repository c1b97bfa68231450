package view

import (
	"time"

	"github.com/spliced-kv/spliced/api"
)

// Cluster implements api.Node.
func (v *View) Cluster() api.Cluster {
	if v.o.Cluster == nil {
		return api.Cluster{}
	}
	return v.o.Cluster()
}

// clusterSeries are totals over all members. A series per member would be too many with 1,000
// members.
type clusterSeries struct {
	Own         int64 `prom:"cluster_own_names" help:"Names of objects that this node announces to others."`
	Names       int64 `prom:"cluster_index_names" help:"Names that other members are believed to hold, counted once per holder."`
	Bytes       int64 `prom:"cluster_index_bytes" help:"Memory of the index of the members' names."`
	Incomplete  int   `prom:"cluster_index_incomplete" help:"Members in use whose set of names is not yet complete here."`
	Unusable    int   `prom:"cluster_unusable" help:"Live members that are not used (another protocol or secret), and addresses that failed authentication in the last minute (another key)."`
	LeftAlone   int   `prom:"cluster_left_alone" help:"Members in use from which nothing is fetched for a while after repeated failures."`
	QueuedBytes int64 `prom:"cluster_queued_bytes" help:"Bytes of pending fetches from members."`
	Encrypted   int   `prom:"cluster_gossip_encrypted" help:"1 while gossip is encrypted."`
	FilesFailed int   `prom:"cluster_files_failed" help:"1 while a changed keyring or certificate cannot be used and the previous one stays in use."`
}

type memberSeries struct {
	State string `label:"state"`
	Count int    `prom:"cluster_members" help:"Members by state, without this node: alive, unreachable (given up by gossip, its place is held for a while), leaving; nodes that failed (crashed or cut off, and given up) or left in the last 72 hours."`
}

// lagSeries exists once some member has reported its complete index.
type lagSeries struct {
	Seconds float64 `prom:"cluster_index_lag_seconds" help:"Age of the oldest complete index of a member."`
}

type certificateSeries struct {
	Ends float64 `prom:"cluster_certificate_end_time_seconds" help:"Expiry of the certificate of the peers' port, in seconds since the epoch."`
}

func (v *View) eachOfCluster(f func(any)) {
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
