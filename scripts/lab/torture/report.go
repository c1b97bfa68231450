package torture

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is the result of a run. Counts of items are sums over rounds: an item is
// acknowledged in one round, and has survived if every audit since has found it intact.
type Report struct {
	Loops          int `json:"loops"`
	SyncedAcked    int `json:"synced_acked"`
	SyncedSurvived int `json:"synced_survived"`
	LoggedAcked    int `json:"logged_acked"`
	LoggedSurvived int `json:"logged_survived"`
	MemoryAcked    int `json:"memory_acked"`
	MemorySurvived int `json:"memory_survived"`
	Corrupt        int `json:"corrupt"`
	Phantom        int `json:"phantom"`

	// The same counts for stores that lost power.
	PowerCrashes        int `json:"power_crashes"`
	PowerSyncedAcked    int `json:"power_synced_acked"`
	PowerSyncedSurvived int `json:"power_synced_survived"`
	PowerLoggedAcked    int `json:"power_logged_acked"`
	PowerLoggedSurvived int `json:"power_logged_survived"`
	PowerMemoryAcked    int `json:"power_memory_acked"`
	PowerMemorySurvived int `json:"power_memory_survived"`
	PowerCorrupt        int `json:"power_corrupt"`
	PowerPhantom        int `json:"power_phantom"`

	Seed      uint64  `json:"seed,string"`
	Version   string  `json:"version"`
	Commit    string  `json:"commit"`
	Duration  float64 `json:"duration_s"`
	PutPerS   float64 `json:"put_per_s"` // acknowledged puts per second, while writers ran
	PutMiBPS  float64 `json:"put_mib_per_s"`
	RestartMs float64 `json:"restart_p50_ms"` // from the start of the process to the first answer
	RestartTo float64 `json:"restart_max_ms"`
	Refused   int     `json:"refused"`   // puts answered with full or busy
	Removed   int     `json:"removed"`   // segments removed on purpose
	InFlight  int     `json:"in_flight"` // puts in flight when the daemon was killed
	Tenants   int     `json:"tenants"`
	Joined    int     `json:"joined"`     // pairs of segments rotated one after another, values compared
	OnDevice  int     `json:"on_device"`  // segments read on the GPU
	BrokenOff int     `json:"broken_off"` // puts whose source ended early
	Reads     int     `json:"read_back"`
	SyncedHit int     `json:"read_back_synced"` // intact reads, by audits, of items acknowledged as synced
	ReadBack  int64   `json:"read_back_bytes"`
	Checked   int     `json:"checked"`       // entries of the directory read by a deep check after the daemon's end
	Damaged   int     `json:"damaged"`       // problems that the deep check found
	Dir       string  `json:"dir,omitempty"` // path of the disk directory and the log of acknowledgements, if they were kept

	Rounds []Round  `json:"rounds"`
	Power  []Round  `json:"power_rounds"`
	Notes  []string `json:"notes,omitempty"`

	restarts []float64     // milliseconds
	writing  time.Duration // of writers
	puts     int64         // acknowledged in that time
	bytes    int64         // of these puts
}

// rates computes the times of restarts and the rates of writers from the rounds with kills.
func (r *Report) rates() {
	if len(r.restarts) == 0 {
		return
	}
	slices.Sort(r.restarts)
	r.RestartMs, r.RestartTo = r.restarts[len(r.restarts)/2], r.restarts[len(r.restarts)-1]
	r.PutPerS = float64(r.puts) / r.writing.Seconds()
	r.PutMiBPS = float64(r.bytes) / (1 << 20) / r.writing.Seconds()
}

// Round is one row of the report: the items that were acknowledged between two crashes, and how
// many of them all audits since the second crash have found intact.
type Round struct {
	Round   int    `json:"round"`
	Crash   string `json:"crash"`
	Variant string `json:"variant"`               // variant of the daemon
	Kept    int    `json:"kept_unsynced_percent"` // of unsynced blocks, after a loss of power
	Tallies
	InFlight int `json:"in_flight"` // puts without a reply
	Findings
	AuditMs float64 `json:"audit_ms"`
}

// addKills adds the sums of rounds that ended in a kill.
func (r *Report) addKills(t Tallies, rounds []Round) {
	r.SyncedAcked += t.Synced.Acked
	r.SyncedSurvived += t.Synced.Survived
	r.LoggedAcked += t.Logged.Acked
	r.LoggedSurvived += t.Logged.Survived
	r.MemoryAcked += t.Memory.Acked
	r.MemorySurvived += t.Memory.Survived
	for _, row := range rounds {
		r.Corrupt += row.Corrupt
		r.Phantom += row.Phantom
	}
}

// addPowerLosses adds the sums of the rounds that ended in a loss of power.
func (r *Report) addPowerLosses(t Tallies) {
	r.PowerSyncedAcked += t.Synced.Acked
	r.PowerSyncedSurvived += t.Synced.Survived
	r.PowerLoggedAcked += t.Logged.Acked
	r.PowerLoggedSurvived += t.Logged.Survived
	r.PowerMemoryAcked += t.Memory.Acked
	r.PowerMemorySurvived += t.Memory.Survived
}

// close adds a row to rows, and moves its notes to the report.
func (r *Report) close(rows *[]Round, row *Round) {
	for _, n := range row.Notes {
		if len(r.Notes) < maxNotes {
			r.Notes = append(r.Notes, fmt.Sprintf("round %d: %s", row.Round, n))
		}
	}
	row.Notes = nil
	r.InFlight += row.InFlight
	r.ReadBack += row.Bytes
	r.Reads += row.Read
	r.SyncedHit += row.Again
	*rows = append(*rows, *row)
}

// leastLogged is the share of items acknowledged as logged that must survive kills of the
// daemon.
const leastLogged = 0.99

// Failures lists the faults of the run, nil if there are none. If no item was acknowledged at a
// level, the run has proved nothing about that level, which counts as a fault.
func (r *Report) Failures() []string {
	var bad []string
	add := func(wrong bool, format string, a ...any) {
		if wrong {
			bad = append(bad, fmt.Sprintf(format, a...))
		}
	}
	add(r.SyncedSurvived < r.SyncedAcked, "%d of %d acknowledged as synced are lost", r.SyncedAcked-r.SyncedSurvived, r.SyncedAcked)
	add(float64(r.LoggedSurvived) < leastLogged*float64(r.LoggedAcked),
		"%d of %d acknowledged as logged survived, want %.0f %%", r.LoggedSurvived, r.LoggedAcked, 100*leastLogged)
	add(r.Corrupt > 0, "%d reads were served other bytes than were submitted", r.Corrupt)
	add(r.Phantom > 0, "%d names are there that were never submitted", r.Phantom)
	add(r.Loops > 0 && (r.SyncedAcked == 0 || r.LoggedAcked == 0),
		"%d acknowledged as synced and %d as logged: nothing is proved", r.SyncedAcked, r.LoggedAcked)
	add(r.Damaged > 0, "a check of the directory finds %d problems", r.Damaged)
	add(r.PowerSyncedSurvived < r.PowerSyncedAcked,
		"power: %d of %d acknowledged as synced are lost", r.PowerSyncedAcked-r.PowerSyncedSurvived, r.PowerSyncedAcked)
	add(r.PowerCorrupt > 0, "power: %d reads were served other bytes than were submitted", r.PowerCorrupt)
	add(r.PowerPhantom > 0, "power: %d names are there that were never submitted", r.PowerPhantom)
	add(r.PowerCrashes > 0 && r.PowerSyncedAcked == 0, "power: nothing acknowledged as synced: nothing is proved")
	return bad
}

// Print writes the ledger as text.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "spliced %s (%s), seed %d: %d kills, then %d power cuts on copies of a file system\n\n",
		r.Version, r.Commit, r.Seed, r.Loops, r.PowerCrashes)
	ledgerTable(&b, r.Rounds)
	powerTable(&b, r.Power)
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "total\tsynced\tlogged\tmemory\tcorrupt\tphantom\n")
	for _, row := range []struct {
		what             string
		levels           [3]Tally
		corrupt, phantom int
	}{
		{"kill -9", [3]Tally{{r.SyncedAcked, r.SyncedSurvived}, {r.LoggedAcked, r.LoggedSurvived}, {r.MemoryAcked, r.MemorySurvived}},
			r.Corrupt, r.Phantom},
		{"power cut", [3]Tally{{r.PowerSyncedAcked, r.PowerSyncedSurvived}, {r.PowerLoggedAcked, r.PowerLoggedSurvived},
			{r.PowerMemoryAcked, r.PowerMemorySurvived}}, r.PowerCorrupt, r.PowerPhantom},
	} {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\n", row.what, row.levels[0], row.levels[1], row.levels[2], row.corrupt, row.phantom)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%.0f acknowledged puts/s (%.0f MiB/s) while writing, %d refused for want of room, %d in flight when killed, %d removed\n",
		r.PutPerS, r.PutMiBPS, r.Refused, r.InFlight, r.Removed)
	fmt.Fprintf(&b, "among the clients of the killed daemon: %d tenants, %d pairs of segments joined, %d segments read on a GPU, %d puts broken off\n",
		r.Tenants, r.Joined, r.OnDevice, r.BrokenOff)
	fmt.Fprintf(&b, "total of kills and cuts: %d of %d synced objects there at the end, read back %d times; %d of %d reads had a wrong byte\n",
		r.SyncedSurvived+r.PowerSyncedSurvived, r.SyncedAcked+r.PowerSyncedAcked, r.SyncedHit, r.Corrupt+r.PowerCorrupt, r.Reads)
	fmt.Fprintf(&b, "restart: %.0f ms in the middle, %.0f ms at most; %.1f GiB read back and compared; %d entries checked offline; %.1f s\n",
		r.RestartMs, r.RestartTo, float64(r.ReadBack)/(1<<30), r.Checked, r.Duration)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "! %s\n", n)
	}
	if r.Dir != "" {
		fmt.Fprintf(&b, "kept: %s\n", r.Dir)
	}
	if bad := r.Failures(); len(bad) > 0 {
		fmt.Fprintf(&b, "FAILED: %s\n", strings.Join(bad, "; "))
	} else {
		fmt.Fprintf(&b, "ok: synced 100 %%, logged at least %.0f %%, nothing corrupt, no phantom\n", 100*leastLogged)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func ledgerTable(b *strings.Builder, rounds []Round) {
	if len(rounds) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "round\tsynced\tlogged\tmemory\tin flight\tread back\tcorrupt\tphantom\tran with\tend\n")
	for i := range rounds {
		r := &rounds[i]
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%d\t%d MiB\t%d\t%d\t%s\t%s\n", r.Round, r.Synced, r.Logged, r.Memory,
			r.InFlight, r.Bytes>>20, r.Corrupt, r.Phantom, r.Variant, r.Crash)
	}
	_ = t.Flush() // a strings.Builder never fails
	b.WriteByte('\n')
}

// powerTable writes one line for all rounds with equal parameters: there are many rounds.
func powerTable(b *strings.Builder, rounds []Round) {
	type group struct {
		variant string
		kept    int
	}
	sums, cuts := map[group]*Round{}, map[group]int{}
	var order []group
	for i := range rounds {
		r := &rounds[i]
		g := group{r.Variant, r.Kept}
		if sums[g] == nil {
			sums[g] = &Round{}
			order = append(order, g)
		}
		cuts[g]++
		sums[g].Tallies.add(r.Tallies)
		sums[g].Findings.add(r.Findings)
	}
	if len(order) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "power cuts\tsynced\tlogged\tmemory\tread back\tcorrupt\tphantom\tran with\tunsynced blocks kept\n")
	for _, g := range order {
		r := sums[g]
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%d MiB\t%d\t%d\t%s\t%d %%\n", cuts[g], r.Synced, r.Logged, r.Memory,
			r.Bytes>>20, r.Corrupt, r.Phantom, g.variant, g.kept)
	}
	_ = t.Flush() // a strings.Builder never fails
	b.WriteByte('\n')
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
