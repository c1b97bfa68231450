package torture

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print writes the report as text.
func (r *SoakReport) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "spliced %s (%s), seed %d: %.0f s at %.0f steps/s, of %.0f/s that the machine bore; %.0f/s were done\n",
		r.Version, r.Commit, r.Seed, r.Seconds, r.Paced, r.Bears, r.Done)
	fmt.Fprintf(&b, "clients that came %d, died %d, stalled %d, lied %d; %d lies, %d believed\n",
		r.Visitors[comes], r.Visitors[dies], r.Visitors[stalls], r.Visitors[lies], r.Lies, r.Believed)
	fmt.Fprintf(&b, "%d objects, %.1f GiB, read back and compared, %d with a wrong byte; %d had left, %d puts without room\n\n",
		r.Read, float64(r.ReadBytes)/(1<<30), r.Corrupt, r.Absent, r.Refused)
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "over the last %.0f %%\tmean\tslope, %%/h\t95 %% interval, %%/h\tbound, %%/h\tsamples\tverdict\n", 100*r.UsedShare)
	for _, s := range r.Slopes {
		percent := func(v float64) string {
			if s.Mean == 0 || s.Verdict == short {
				return "-"
			}
			return fmt.Sprintf("%+.2f", 100*v/s.Mean)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s to %s\t%g\t%d\t%s\n", s.Name, s.mean(), percent(s.PerHour), percent(s.Low), percent(s.High), s.Bound, s.Samples, s.Verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "! %s\n", n)
	}
	if bad := r.Failures(); len(bad) > 0 {
		fmt.Fprintf(&b, "FAILED: %s\n", strings.Join(bad, "; "))
	} else if r.Judged {
		fmt.Fprintf(&b, "ok: no wrong byte, no lie believed, nothing that rises\n")
	} else {
		fmt.Fprintf(&b, "ok: no wrong byte, no lie believed; too short for slopes to count, which takes %v\n", leastJudged)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Slope) mean() string {
	switch s.Unit {
	case "bytes":
		return fmt.Sprintf("%.1f MiB", s.Mean/(1<<20))
	case "":
		return fmt.Sprintf("%.1f", s.Mean)
	}
	return fmt.Sprintf("%.0f %s", s.Mean, s.Unit)
}
