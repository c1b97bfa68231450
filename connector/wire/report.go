package wire

import "math"

// ReportRequest tells what a canary has seen: reuses of segments that an engine
// computed again and compared. The counts are those since the last report.
type ReportRequest struct {
	Profile  uint32
	Compared uint32
	Failed   uint32  // of these, those past the bound
	Worst    float64 // largest difference since the last report; +Inf where a result was no number
	Bound    float64 // what a difference may be
	Off      uint8   // 1 = splicing is to be switched off for this profile
	Text     string  // for people; at most MaxErrorText bytes
}

// ReportReply answers a ReportRequest.
type ReportReply struct {
	Off uint8 // 1 = the profile is switched off for the tenant, by this report or before
}

// Append implements Message.
func (m *ReportRequest) Append(b []byte) []byte {
	w := begin(b)
	w.u32(m.Profile)
	w.u32(m.Compared)
	w.u32(m.Failed)
	w.u64(math.Float64bits(m.Worst))
	w.u64(math.Float64bits(m.Bound))
	w.u8(m.Off)
	w.text(m.Text)
	return w.b
}

// Decode implements Message.
func (m *ReportRequest) Decode(body []byte) error {
	r := reader{message: "report request", body: body}
	m.Profile = r.u32("profile")
	m.Compared = r.u32("compared")
	m.Failed = r.u32("failed")
	m.Worst = math.Float64frombits(r.u64("worst"))
	m.Bound = math.Float64frombits(r.u64("bound"))
	m.Off = r.u8("off")
	m.Text = r.text("text", MaxErrorText)
	return r.end()
}

// Append implements Message.
func (m *ReportReply) Append(b []byte) []byte {
	w := begin(b)
	w.u8(m.Off)
	w.align(8)
	return w.b
}

// Decode implements Message.
func (m *ReportReply) Decode(body []byte) error {
	r := reader{message: "report reply", body: body}
	m.Off = r.u8("off")
	return r.end()
}
