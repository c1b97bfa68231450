package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func newJournal(bytes int64) *Journal { return New(math.MaxUint64, bytes, time.Now) }

// texts are the events' texts, a lost one's with its number.
func texts(list []api.Event) string {
	var words []string
	for _, e := range list {
		if e.Kind == api.EventLost {
			words = append(words, fmt.Sprintf("%s:%d", e.Why, e.Lost))
		} else {
			words = append(words, e.Text)
		}
	}
	return strings.Join(words, " ")
}

func (j *Journal) say(format string, args ...any) {
	j.Append(Event{Kind: Changed, Text: fmt.Sprintf(format, args...)})
}

func follow(t testing.TB, j *Journal, q api.EventQuery) *Follower {
	t.Helper()
	f, err := j.Follow(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f.(*Follower)
}

// next is what a follower reads at once.
func (f *Follower) text(t testing.TB) string {
	t.Helper()
	list, err := f.Next(t.Context(), 0, make([]api.Event, 0, 100))
	if err != nil {
		t.Fatal(err)
	}
	return texts(list)
}

func TestEventsComeInTheirOrder(t *testing.T) {
	j := newJournal(DefaultBytes)
	j.say("before")
	f := follow(t, j, api.EventQuery{})
	if got := f.text(t); got != "" {
		t.Errorf("from now on: %q", got)
	}
	for i := range 5 {
		j.say("%d", i)
	}
	if got := f.text(t); got != "0 1 2 3 4" {
		t.Errorf("followed %q", got)
	}
	list, more := j.Events(api.EventQuery{After: new(uint64), Limit: 3})
	if texts(list) != "before 0 1" || !more {
		t.Fatalf("the oldest: %q, more %v", texts(list), more)
	}
	for i := range list[1:] {
		if list[i+1].ID != list[i].ID+1 || list[i].ID >= 1<<53 {
			t.Errorf("ids %d, %d", list[i].ID, list[i+1].ID)
		}
	}
	if list, more = j.Events(api.EventQuery{After: &list[2].ID, Limit: 3}); texts(list) != "2 3 4" || more {
		t.Errorf("after those: %q, more %v", texts(list), more)
	}
	if list, more = j.Events(api.EventQuery{After: &list[2].ID, Limit: 3}); len(list) != 0 || more {
		t.Errorf("after the last: %q, more %v", texts(list), more)
	}
	if list, _ = j.Events(api.EventQuery{Limit: 2}); texts(list) != "3 4" {
		t.Errorf("the newest: %q", texts(list))
	}
	resumed := follow(t, j, api.EventQuery{After: &list[0].ID})
	if got := resumed.text(t); got != "4" {
		t.Errorf("resumed: %q", got)
	}
}

func TestReadersOfAnEarlierStartAreTold(t *testing.T) {
	first, second := New(1<<63, DefaultBytes, time.Now), New(1<<62, DefaultBytes, time.Now)
	for range 3 {
		first.say("old")
	}
	list, _ := first.Events(api.EventQuery{Limit: 1})
	old := list[0].ID
	f := follow(t, second, api.EventQuery{After: &old})
	if got := f.text(t); got != "restarted:0" {
		t.Errorf("nothing has happened since: %q", got)
	}
	second.say("new")
	if got := f.text(t); got != "new" {
		t.Errorf("then %q", got)
	}
	list, _ = second.Events(api.EventQuery{After: &old, Limit: 9})
	if texts(list) != "restarted:0 new" || list[0].ID+1 != list[1].ID {
		t.Errorf("listed %q, %d before %d", texts(list), list[0].ID, list[1].ID)
	}
	// With the id of the lost one it goes on after it.
	if list, _ = second.Events(api.EventQuery{After: &list[0].ID, Limit: 9}); texts(list) != "new" {
		t.Errorf("after the lost one: %q", texts(list))
	}
	unheard := list[0].ID + 1000 // of a start with the same number that had come further
	if list, _ = second.Events(api.EventQuery{After: &unheard, Limit: 9}); texts(list) != "restarted:0 new" {
		t.Errorf("an id that was not given yet: %q", texts(list))
	}
}

func TestWhatIsKeptIsBounded(t *testing.T) {
	const most = 512 << 10
	j := newJournal(most)
	var r *ring
	f := follow(t, j, api.EventQuery{})
	long := strings.Repeat("x", 10*maxText)
	kept := 0
	for i := range 10_000 {
		e := Event{Kind: Changed}
		if i%7 == 0 {
			e.Text = long
		}
		j.Append(e)
		r = j.mu.at[place{class: own}]
		if got := int64(len(r.chunks)+1)*chunkEvents*eventBytes + r.bytes; got > j.most[own] {
			t.Fatalf("%d bytes after %d events", got, i)
		}
		kept = int(r.next - r.first)
	}
	if kept < 20 || cap(r.chunks) > 64 {
		t.Errorf("%d events are kept, in room for %d chunks", kept, cap(r.chunks))
	}
	strs := int64(0)
	for n := r.first; n < r.next; n++ {
		strs += r.at(n).strings()
	}
	if strs != r.bytes {
		t.Errorf("%d bytes of strings, accounted for are %d", strs, r.bytes)
	}
	list, err := f.Next(t.Context(), 0, make([]api.Event, 0, kept+10))
	if err != nil || list[0].Kind != api.EventLost || int(list[0].Lost) != 10_000-kept || len(list) != kept+1 {
		t.Fatalf("%d of %d events, the first %+v, %v", len(list), kept, list[0], err)
	}
	if c := j.Counters(); c.Events != 10_000 || c.Kept != uint64(kept) || c.Lost != list[0].Lost || c.Followers != 1 || c.Bytes > most || c.Bytes == 0 {
		t.Errorf("counted %+v", c)
	}
	if list[1].ID != list[0].ID+1 {
		t.Errorf("%d follows the lost %d", list[1].ID, list[0].ID)
	}
	// One event that is larger than all is kept alone.
	tiny := newJournal(1)
	tiny.say("%s", long)
	tiny.say("last")
	if list, _ := tiny.Events(api.EventQuery{Limit: 9}); texts(list) != "last" {
		t.Errorf("kept %d", len(list))
	}
}

func TestFiltersPassWhatTheyName(t *testing.T) {
	j := newJournal(400 << 10)
	only := follow(t, j, api.EventQuery{Kinds: []string{api.EventPeer, api.EventDisk}})
	whose := follow(t, j, api.EventQuery{Tenant: "a", Kinds: []string{api.EventRequest}})
	for i := range 2000 { // more than are kept
		if only.text(t) != "" || whose.text(t) != "" {
			t.Fatal("what nobody asked for")
		}
		j.Append(Event{Kind: Request, Tenant: "b", Text: fmt.Sprint(i)})
	}
	j.Append(Event{Kind: Request, Tenant: "a", Text: "mine"})
	j.Append(Event{Kind: Disk, Text: "full"})
	j.Append(Event{Kind: GPU, Text: "lost"})
	if got := only.text(t); !strings.HasSuffix(got, "full") {
		t.Errorf("by kind: %q", got)
	}
	if got := whose.text(t); !strings.HasSuffix(got, "mine") {
		t.Errorf("by tenant: %q", got)
	}
	if list, _ := j.Events(api.EventQuery{Tenant: "a", Limit: 5}); texts(list) != "mine" {
		t.Errorf("listed by tenant: %q", texts(list))
	}
	q := api.EventQuery{Tenant: "b", Limit: 5}
	if list, _ := j.Events(q); texts(list) != "1995 1996 1997 1998 1999" {
		t.Errorf("the newest of a tenant: %q", texts(list))
	}
}

// No client makes what operators did, or what happened to other tenants, leave: neither from
// what is kept nor from a short list of the newest.
func TestClientsDoNotPushOthersOut(t *testing.T) {
	j := newJournal(DefaultBytes)
	j.Append(Event{Kind: Changed, Text: "operator"})
	j.Append(Event{Kind: Request, Tenant: "b", Text: "request"})
	j.Append(Event{Kind: Attached, Tenant: "b", Text: "attached"})
	j.Append(Event{Kind: Canary, Tenant: "b", Text: "canary"})
	for range 20_000 {
		for _, kind := range []Kind{Attached, Detached, Request, Canary, Published} {
			j.Append(Event{Kind: kind, Tenant: "a", Text: "noise"})
		}
	}
	check := func(what string, list []api.Event) {
		t.Helper()
		for _, text := range []string{"operator", "request", "attached", "canary"} {
			if !strings.Contains(texts(list), text) {
				t.Errorf("%s: %q is gone", what, text)
			}
		}
	}
	all, _ := j.Events(api.EventQuery{After: new(uint64), Limit: 100_000})
	check("kept", all)
	newest, _ := j.Events(api.EventQuery{Limit: 40})
	check("listed", newest)
	if len(newest) != 40 || !slices.IsSortedFunc(newest, func(a, b api.Event) int { return cmp.Compare(a.ID, b.ID) }) {
		t.Errorf("%d are listed, or not in order", len(newest))
	}
	if c := j.Counters(); c.Bytes > DefaultBytes {
		t.Errorf("%d bytes", c.Bytes)
	}
}

// So many tenants that not all of them have a place: the bound holds.
func TestManyTenantsShareAPlace(t *testing.T) {
	j := newJournal(DefaultBytes)
	for i := range 50_000 {
		j.Append(Event{Kind: []Kind{Request, Attached}[i%2], Tenant: fmt.Sprint(i % 500)})
	}
	if n := len(j.mu.rings); n > 2*(maxTenants+1) {
		t.Errorf("%d rings", n)
	}
	if c := j.Counters(); c.Bytes > DefaultBytes || c.Kept < 1000 {
		t.Errorf("%+v", c)
	}
}

// What is rare stays while what is not comes and goes, and all are read in one order.
func TestWhatIsRareDoesNotLeaveForWhatIsNot(t *testing.T) {
	j := newJournal(512 << 10)
	f := follow(t, j, api.EventQuery{})
	for i := range 30 {
		j.Append(Event{Kind: GPU, Text: fmt.Sprintf("gpu-%d", i)})
		for range 1000 {
			j.Append(Event{Kind: Request, Text: "r"})
		}
	}
	kept := j.mu.at[place{class: often}]
	requests := int(kept.next - kept.first)
	if requests < 500 || requests > 3000 {
		t.Fatalf("%d requests are kept", requests)
	}
	var list []api.Event
	for n := -1; n < len(list); {
		n = len(list)
		var err error
		if list, err = f.Next(t.Context(), 0, append(make([]api.Event, 0, len(list)+20), list...)); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	lost := 30*1000 - requests
	for i := range 30 {
		want = append(want, fmt.Sprint("gpu-", i))
		if i == 0 {
			want = append(want, fmt.Sprint("behind:", lost))
		}
	}
	got := texts(list)
	if seen := strings.Join(strings.Fields(strings.ReplaceAll(got, " r", "")), " "); seen != strings.Join(want, " ") || strings.Count(got, " r") != requests {
		t.Errorf("read %s, and %d of %d requests", seen, strings.Count(got, " r"), requests)
	}
	for i := range list[1:] {
		if list[i+1].ID <= list[i].ID {
			t.Fatalf("%d follows %d", list[i+1].ID, list[i].ID)
		}
	}
	// The same by pages, from the oldest on: nothing was lost to who has just come.
	var paged []api.Event
	after := uint64(0)
	for more := true; more; {
		var page []api.Event
		page, more = j.Events(api.EventQuery{After: &after, Limit: 70})
		paged = append(paged, page...)
		after = page[len(page)-1].ID
		if len(paged) == 70 && paged[69].Kind == api.EventLost {
			t.Error("lost before it came")
		}
	}
	if n := len(paged) - 30 - requests; n > 1 { // the second page resumes within the gap
		t.Errorf("%d more than are kept", n)
	}
	if newest, _ := j.Events(api.EventQuery{Limit: 1500}); newest[len(newest)-1].ID != list[len(list)-1].ID || newest[0].ID >= newest[1].ID || strings.Count(texts(newest), "gpu") < 1 {
		t.Errorf("the newest: %d, from %d to %d", len(newest), newest[0].ID, newest[len(newest)-1].ID)
	}
	if newest, _ := j.Events(api.EventQuery{Kinds: []string{api.EventGPU}, Limit: 100}); len(newest) != 30 {
		t.Errorf("%d of a kind", len(newest))
	}
}

// Who waits for something else is not woken, and misses nothing for it.
func TestSleepersSleepThroughWhatIsNotTheirs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal(320 << 10)
		f := follow(t, j, api.EventQuery{Kinds: []string{api.EventPeer}})
		got := make(chan string)
		go func() {
			list, err := f.Next(t.Context(), time.Hour, make([]api.Event, 0, 10))
			got <- fmt.Sprint(texts(list), err)
		}()
		synctest.Wait()
		for range 5000 {
			j.say("not theirs")
		}
		synctest.Wait()
		if !f.asleep || j.mu.asleep != 1 || f.next != j.mu.next {
			t.Fatalf("asleep %v, at %d of %d", f.asleep, f.next, j.mu.next)
		}
		j.Append(Event{Kind: Peer, Text: "theirs"})
		if text := <-got; text != "theirs<nil>" {
			t.Errorf("woken with %q", text)
		}
	})
}

func TestAFollowerWaitsNoLongerThanItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal(DefaultBytes)
		f := follow(t, j, api.EventQuery{})
		began := time.Now()
		if list, err := f.Next(t.Context(), time.Minute, nil); err != nil || len(list) != 0 || time.Since(began) != time.Minute {
			t.Errorf("%d events after %v, %v", len(list), time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.Next(ctx, time.Minute, nil); !errors.Is(err, context.DeadlineExceeded) || j.mu.asleep != 0 {
			t.Errorf("%v, %d asleep", err, j.mu.asleep)
		}
		j.say("after it")
		if got := f.text(t); got != "after it" {
			t.Errorf("then %q", got)
		}
	})
}

func TestFollowersAreBounded(t *testing.T) {
	j := newJournal(DefaultBytes)
	var last *Follower
	for range MaxFollowers {
		f, err := j.Follow(api.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		last = f.(*Follower)
	}
	if _, err := j.Follow(api.EventQuery{}); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("one more: %v", err)
	}
	if c := j.Counters(); c.Refused != 1 || c.Followers != MaxFollowers {
		t.Errorf("counted %+v", c)
	}
	last.Close()
	if _, err := j.Follow(api.EventQuery{}); err != nil {
		t.Errorf("after one has left: %v", err)
	}
}

// Many append while many follow: each follower gets each event once and in order, or is
// told how many it has lost.
func TestNothingIsLostWithoutAWord(t *testing.T) {
	const writers, each, readers = 4, 5000, 4
	j := newJournal(96 << 10)
	var writing, reading sync.WaitGroup
	for r := range readers {
		f := follow(t, j, api.EventQuery{})
		reading.Go(func() {
			var seen, lost uint64
			last := j.base
			list := make([]api.Event, 0, 5+20*r)
			for seen+lost < writers*each {
				var err error
				if list, err = f.Next(t.Context(), time.Minute, list[:0]); err != nil || len(list) == 0 {
					t.Errorf("%d events, %v", len(list), err)
					return
				}
				for _, e := range list {
					if e.Kind == api.EventLost {
						lost += e.Lost
						last += e.Lost
					} else {
						seen++
						last++
					}
					if e.ID != last {
						t.Errorf("%s %d, want %d", e.Kind, e.ID, last)
						return
					}
				}
			}
		})
	}
	for range writers {
		writing.Go(func() {
			for range each {
				j.Append(Event{Kind: Request})
			}
		})
	}
	writing.Wait()
	reading.Wait()
}

func TestADecisionIsAnEventWithWhatItCompetedWith(t *testing.T) {
	j := newJournal(DefaultBytes)
	names := Names{Tenant: func(id tier.TenantID) string { return fmt.Sprint("tenant-", id) }, Public: "gdsf", Private: "lru", Quota: "default"}
	key, rival := [32]byte{1}, [32]byte{2}
	for _, row := range []struct {
		d    decision.Decision
		want string // kind, object, policy: text; empty = no event
	}{
		{decision.Decision{What: decision.Admit, Why: decision.Filled, End: 64, Client: "vllm"}, "published segment : 64 tokens by vllm"},
		{decision.Decision{What: decision.Admit, Why: decision.Promoted, From: tier.PlaceDisk}, "promoted segment : from the disk into memory"},
		{decision.Decision{What: decision.Admit, Why: decision.ReadAhead, From: tier.PlacePeer}, "fetched segment : from another node into memory"},
		{decision.Decision{What: decision.Admit, Why: decision.Promoted, From: tier.PlaceObject}, "fetched segment : from the object store into memory"},
		{decision.Decision{What: decision.Admit, Why: decision.Promoted, From: tier.PlaceDRAM, In: tier.PlaceHBM}, "promoted segment : a copy into HBM"},
		{decision.Decision{What: decision.Evict, Why: decision.ForRoom, Value: 1, Rival: decision.Rival{Name: tier.Name{Key: rival}, Value: 2}}, "evicted segment gdsf: for room in its pool: segment 020000000000 needs it, worth 2 ms per MiB against 1"},
		{decision.Decision{What: decision.Demote, Why: decision.ForQuota}, "demoted segment default: for its tenant's quota"},
		{decision.Decision{What: decision.Strip, Why: decision.ForRoom, Name: tier.Name{Kind: tier.Exact}}, "evicted checkpoint lru: its states left memory, its rows stay for what extends it"},
		{decision.Decision{What: decision.Drop, Why: decision.Removed}, "evicted segment : removed by an operator"},
		{decision.Decision{What: decision.Refuse, Why: decision.NoRoom}, ""},
		{decision.Decision{What: decision.Advise}, ""},
	} {
		before := j.mu.next
		row.d.Name.Key, row.d.Tenant, row.d.Profile, row.d.Model, row.d.Bytes = key, 7, 3, "m", 4096
		j.Decided(&row.d, &names)
		if row.want == "" {
			if j.mu.next != before {
				t.Errorf("%v is an event", row.d.What)
			}
			continue
		}
		list, _ := j.Events(api.EventQuery{Limit: 1})
		e := list[0]
		if got := fmt.Sprintf("%s %s %s: %s", e.Kind, e.Object, e.Policy, e.Text); got != row.want {
			t.Errorf("%v: %q, want %q", row.d.What, got, row.want)
		}
		if *e.Key != api.Digest(key) || e.Tenant != "tenant-7" || e.Profile != 3 || e.Model != "m" || e.Bytes != 4096 || e.Why == "" {
			t.Errorf("%v: %+v", row.d.What, e)
		}
	}
}

func TestAppendingAllocatesNothing(t *testing.T) {
	var none *Journal
	none.Append(Event{}) // does nothing
	j := newJournal(64 << 10)
	follow(t, j, api.EventQuery{})
	e := Event{Kind: Evicted, Object: Segment, Tenant: "a", Why: "for room in its pool"}
	for range 1000 {
		j.Append(e)
	}
	if n := testing.AllocsPerRun(1000, func() { j.Append(e) }); n > 0.1 { // room for the list of chunks
		t.Errorf("%v allocations", n)
	}
}

func TestKindsAreThoseOfTheAPI(t *testing.T) {
	if len(api.EventKinds) != int(kinds) || Changed.String() != api.EventChanged || Published.String() != api.EventPublished || GPU.String() != api.EventGPU {
		t.Error("kinds are not in the order of the API's")
	}
}

func TestValuesThatJSONCannotSayAreLeftOut(t *testing.T) {
	j := newJournal(DefaultBytes)
	j.Append(Event{Value: math.Inf(1)})
	j.Append(Event{Value: math.NaN()})
	list, _ := j.Events(api.EventQuery{Limit: 2})
	if list[0].Value != 0 || list[1].Value != 0 {
		t.Errorf("%v, %v", list[0].Value, list[1].Value)
	}
}
