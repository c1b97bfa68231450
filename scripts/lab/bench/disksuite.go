package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// diskSections returns the sections of the suite disk: the tier and fio, alternately on one
// disk.
func diskSections() []section {
	return []section{
		{"bulk", bulkRows}, {"group", groupRows}, {"promotion", promotionRow}, {"open", openingRow}, {"busy", busyRows},
		{"codec", codecRows}, {"durable", durableRows}, {"torture", tortureNotes},
	}
}

// tortureNotes measures nothing. From a report of torture runs it notes how much acknowledged
// data survived, next to the numbers in the documentation of kvblockd.
func tortureNotes(_ context.Context, s *session) error {
	if s.options.Torture == "" {
		return nil
	}
	text, err := os.ReadFile(s.options.Torture)
	if err != nil {
		return err
	}
	notes, err := survivals(text)
	if err != nil {
		return fmt.Errorf("%s: %w", s.options.Torture, err)
	}
	s.report.Notes = append(s.report.Notes, notes...)
	return nil
}

func survivals(text []byte) ([]string, error) {
	var r struct {
		Loops          int `json:"loops"`
		MemoryAcked    int `json:"memory_acked"`
		MemorySurvived int `json:"memory_survived"`
		LoggedAcked    int `json:"logged_acked"`
		LoggedSurvived int `json:"logged_survived"`
		SyncedAcked    int `json:"synced_acked"`
		SyncedSurvived int `json:"synced_survived"`
		Corrupt        int `json:"corrupt"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.MemoryAcked+r.LoggedAcked+r.SyncedAcked == 0 {
		return nil, fmt.Errorf("nothing was acknowledged in %d loops", r.Loops)
	}
	notes := []string{fmt.Sprintf("survived kill -9, of what was acknowledged, in %d loops, with %d corrupt reads:", r.Loops, r.Corrupt)}
	for _, l := range []struct {
		level           string
		acked, survived int
	}{{"memory", r.MemoryAcked, r.MemorySurvived}, {"logged", r.LoggedAcked, r.LoggedSurvived}, {"synced", r.SyncedAcked, r.SyncedSurvived}} {
		if l.acked > 0 {
			notes = append(notes, fmt.Sprintf("  %s: %d of %d, %.4g %%", l.level, l.survived, l.acked, 100*float64(l.survived)/float64(l.acked)))
		}
	}
	return append(notes, "  kvblockd, as published: 23 %"), nil
}
