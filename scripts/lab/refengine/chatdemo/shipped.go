package chatdemo

// Shipped returns the script that ships with the program: eight conversations under two
// system prompts, five of them new and three forked.
func Shipped() *Script {
	const support, coder = 0, 1
	return &Script{
		Systems: []string{supportPrompt, coderPrompt},
		Steps: []Step{
			{Chat: "invoice", Kind: First, System: support, Text: "I was charged twice this month. The second charge is from the 3rd and I have only one account."},
			{Chat: "flaky", Kind: First, System: coder, Text: "The test TestUploadResumes fails about once in twenty runs since Monday. Find out why and fix it."},
			{Chat: "invoice", Kind: Tool, Text: billingTable},
			{Chat: "flaky", Kind: Tool, Text: failingLog},
			{Chat: "refund", Kind: First, System: support, Text: "Hello, how long do refunds take? I returned a router two weeks ago and see nothing on my card."},
			{Chat: "flaky", Kind: Tool, Text: uploadSource},
			{Chat: "invoice", Kind: Next, Text: "So which of the two is the mistake, and when do I have the money back?"},
			{Chat: "invoice", Kind: Regenerate},
			{Chat: "rename", Kind: First, System: coder, Text: "Rename the option retryCount to maxRetries everywhere, keep the old name working for one release."},
			{Chat: "flaky", Kind: Next, Text: "Do not add a sleep. What happens when the second chunk is acknowledged before the first?"},
			{Chat: "rename", Kind: Tool, Text: searchResult},
			{Chat: "refund", Kind: Tool, Text: shippingTable},
			{Chat: "flaky other", Kind: Fork, From: "flaky", Keep: 4, Text: "Leave the code as it is and tell me only how to make the test show the fault each time."},
			{Chat: "refund", Kind: Next, Text: "The tracking says delivered on the 9th. Can you please send me a receipt for the return?"},
			{Chat: "rename", Kind: Next, Text: "Use a deprecation warning that names the file and the line of the caller."},
			{Chat: "rename", Kind: Regenerate},
			{Chat: "outage", Kind: First, System: support, Text: "My line has been down since seven this morning, and the lamp at the box blinks red. I work from home."},
			{Chat: "outage", Kind: Tool, Text: lineCheck},
			{Chat: "flaky", Kind: Tool, Text: passingLog},
			{Chat: "invoice", Kind: Next, Text: "Please also change my address to 14 Harbour Street from the first of next month."},
			{Chat: "outage", Kind: Next, Text: "A technician on Thursday is too late. What else can you offer me until then?"},
			{Chat: "outage other", Kind: Fork, From: "outage", Keep: 4, Text: "Thursday is fine. Which hours, and do I have to be there?"},
			{Chat: "rename other", Kind: Fork, From: "rename", Keep: 4, Text: "Do it without the old name after all, and list who has to change what."},
			{Chat: "refund", Kind: Next, Text: "Thank you. Is the deposit for the cable part of it?"},
			{Chat: "flaky", Kind: Next, Text: "Good. Write the message of the commit, three lines at most."},
			{Chat: "flaky", Kind: Regenerate},
			{Chat: "outage", Kind: Next, Text: "Then take the mobile router. How do I set it up?"},
			{Chat: "rename", Kind: Tool, Text: passingLog},
			{Chat: "outage other", Kind: Next, Text: "And if the fault is in the house, who pays?"},
			{Chat: "invoice", Kind: Next, Text: "That is all, thank you."},
		},
	}
}

const supportPrompt = `You answer customers of a telephone and internet company in writing. Be brief, friendly and exact.
Rules:
1. Look before you answer: call a tool for anything that depends on the customer's account, line or parcels.
2. Never promise a date or a sum that no tool has given you. Say what you do not know.
3. One question at a time. Do not ask for what the account already shows.
4. Amounts in euros with two digits, dates as 3 March, hours on a clock of 24.
5. If somebody is in danger or cannot call for help, give the number of the emergency desk first: 0800 112 11.
6. You may credit up to 20.00 without asking; above that, hand over to a person and say so.
Tools:
  billing(month) lists charges with date, sum, product and state.
  line(check) measures the customer's line: signal, errors, last restart, known faults in the area.
  parcels() lists what was sent and returned, with carrier, number and last scan.
  appointment(kind, week) lists free hours of technicians; appointment(book, id) takes one.
  handover(reason) puts a person into this conversation.
A tool's answer comes as a message of its own. Do not repeat tables; say what follows from them.
When everything is settled, say in one sentence what was done and end.
`

const coderPrompt = `You change code in a repository at the request of its maintainers. You work in small steps and show your reasons.
Rules:
1. Read before you write. Never guess what a function does when you can open it.
2. One idea a change. Tests come with it and fail without it.
3. No sleeps in tests, no new dependencies without asking, no reformatting of lines that you do not change.
4. Say what you have run and what came out. If something could not be run, say that instead.
5. When two ways are open, name both in a sentence each and take the simpler one.
6. A public name is renamed in two steps: the new one first, the old one kept with a warning for one release.
Tools:
  open(path, from, to) shows lines of a file.
  search(text) lists files and lines.
  edit(path, patch) changes a file and shows the result.
  run(command) runs a command in a sandbox without network, at most 120 seconds, and shows the end of its output.
  commit(message) records what was changed.
A tool's answer comes as a message of its own. Quote no more of it than the reader needs.
End with what changed, what was tested, and what is left to do, one line each.
`

const billingTable = `billing(this month)
date     sum      product                       state
1 March  39.90    Home 250, monthly             paid, card ending 4471
3 March  39.90    Home 250, monthly             paid, card ending 4471
1 March   4.00    paper invoice                 paid, card ending 4471
3 March  -4.00    paper invoice, cancelled      credited
note: contract moved to new billing system on 2 March; first run repeated on 3 March for 1,312 accounts.
`

const shippingTable = `parcels()
sent      what                carrier  number        last scan
12 Feb    router R7, new      NordPost NP4471882301  delivered 14 Feb, signed
returned  what                carrier  number        last scan
24 Feb    router R5, old      NordPost NP4471900127  delivered 9 March, depot Kiel, not yet inspected
note: refunds are released by inspection, 5 working days after delivery on average this month.
`

const lineCheck = `line(check)
signal       lost at 06:52, box restarts every 90 seconds
errors       n/a
area         cable damage at works in Seilerstrasse since 06:50, 214 lines, repair expected Thursday 12:00
last faults  none in 400 days
offers       mobile router by courier today until 20:00, free for the time of the fault; credit of one day's fee a day
`

const failingLog = `run(go test -run TestUploadResumes -count=40 ./upload)
--- FAIL: TestUploadResumes (0.03s)
    upload_test.go:118: resumed at byte 65536, want 131072
    upload_test.go:121: server has 3 chunks, client counted 2
--- FAIL: TestUploadResumes (0.02s)
    upload_test.go:118: resumed at byte 65536, want 131072
ok in 38 of 40 runs
FAIL	example.org/sync/upload	1.204s
`

const passingLog = `run(go test -race -count=200 ./...)
ok  	example.org/sync	4.118s
ok  	example.org/sync/upload	9.870s
ok  	example.org/sync/store	2.231s
ok  	example.org/sync/internal/wire	0.418s
?   	example.org/sync/cmd/syncd	[no test files]
200 of 200 runs passed, no race reported
`

const uploadSource = `open(upload/resume.go, 40, 71)
func (u *Upload) acknowledged(c chunk) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done[c.index] = true
	if c.index == u.next {
		u.next++
		u.offset = c.end
	}
}

// Resume continues where the server has everything.
func (u *Upload) Resume(ctx context.Context) error {
	u.mu.Lock()
	from := u.offset
	u.mu.Unlock()
	return u.send(ctx, from)
}
`

const searchResult = `search(retryCount)
config/options.go:31:	retryCount int // attempts after the first
config/options.go:77:	if o.retryCount < 0 || o.retryCount > 20 {
config/parse.go:112:	case "retryCount":
config/parse_test.go:58:	{"retryCount=3", Options{retryCount: 3}},
client/dial.go:44:	for i := 0; i <= c.opt.retryCount; i++ {
docs/options.md:19: retryCount (whole number, 0 to 20, default 3)
6 lines in 5 files
`
