package profile

import "testing"

func TestTheTrialIsNoOtherProfile(t *testing.T) {
	p, err := Trial()
	must(t, err)
	if !p.Fingerprint().IsTrial() {
		t.Error("the trial is not itself")
	}
	other := trialIdentity()
	other.Weights[0]++ // an engine that borrows the name
	q, err := New(other)
	must(t, err)
	if q.Fingerprint().IsTrial() {
		t.Error("a profile of the same name and other weights is taken for the trial")
	}
}
