package vk

import (
	"testing"
	"time"
)

func TestDecidePod(t *testing.T) {
	local := podFacts{exists: true, tolerates: true, offloading: yes, portable: true, complete: true}
	with := func(change func(*podFacts)) podFacts {
		f := local
		change(&f)
		return f
	}
	tests := map[string]struct {
		facts podFacts
		want  step
	}{
		"a new pod is wanted":                                                {local, stepWant},
		"a pod without its references waits":                                 {with(func(f *podFacts) { f.complete = false }), stepWait},
		"a new pod stays at home while its namespace is closed":              {with(func(f *podFacts) { f.closed = true }), stepHold},
		"a pod that runs goes on while its namespace is closed":              {with(func(f *podFacts) { f.closed, f.taken = true, true }), stepWant},
		"a pod that runs does not wait for a lost ConfigMap":                 {with(func(f *podFacts) { f.complete, f.taken = false, true }), stepWant},
		"after a restart a running pod does not wait":                        {with(func(f *podFacts) { f.complete, f.recorded = false, true }), stepWant},
		"a foreign pod is not applicable":                                    {with(func(f *podFacts) { f.offloading = no }), stepNotApplicable},
		"nothing happens while offloading is not known":                      {with(func(f *podFacts) { f.offloading = unknown }), stepNothing},
		"a running pod goes on when its namespace is not offloaded any more": {with(func(f *podFacts) { f.offloading, f.taken = no, true }), stepWant},
		"a running pod goes on while its namespace is not known":             {with(func(f *podFacts) { f.offloading, f.recorded = unknown, true }), stepWant},
		"a pod that was bound by hand is left alone":                         {with(func(f *podFacts) { f.tolerates = false }), stepLeave},
		"a deleted pod that was bound by hand is left alone":                 {with(func(f *podFacts) { f.tolerates, f.deleting = false, true }), stepLeave},
		"a pod that runs is not left alone":                                  {with(func(f *podFacts) { f.tolerates, f.taken, f.deleting = false, true, true }), stepUnwant},
		"a pod with host access is refused":                                  {with(func(f *podFacts) { f.portable = false }), stepRefuse},
		"a pod that ended is final":                                          {with(func(f *podFacts) { f.terminal, f.taken = true, true }), stepFinal},
		"a pod that ended and is gone is final":                              {with(func(f *podFacts) { f.terminal, f.gone = true, true }), stepFinal},
		"a pod that is gone unasked fails":                                   {with(func(f *podFacts) { f.taken, f.wanted, f.gone = true, true, true }), stepFail},
		"a pod that is being deleted is unwanted":                            {with(func(f *podFacts) { f.deleting, f.taken = true, true }), stepUnwant},
		"an ack is not the end of a pod that ran":                            {with(func(f *podFacts) { f.deleting, f.taken, f.deleteAcked = true, true, true }), stepUnwant},
		"an ack is the end of a pod that never came":                         {with(func(f *podFacts) { f.deleting, f.wanted, f.deleteAcked = true, true, true }), stepFinalise},
		"a deleted pod that is gone is finalised":                            {with(func(f *podFacts) { f.deleting, f.taken, f.gone = true, true, true }), stepFinalise},
		"a deleted foreign pod is finalised":                                 {with(func(f *podFacts) { f.deleting, f.offloading = true, no }), stepFinalise},
		"a deleted pod that could not cross is finalised":                    {with(func(f *podFacts) { f.deleting, f.portable = true, false }), stepFinalise},
		"a deleted pod that may have crossed waits for word":                 {with(func(f *podFacts) { f.deleting = true }), stepUnwant},
		"a deleted pod that ended is finalised":                              {with(func(f *podFacts) { f.deleting, f.terminal, f.recorded = true, true, true }), stepFinalise},
		"a pod that the provider stopped as agreed ends":                     {with(func(f *podFacts) { f.taken, f.wanted, f.fenced = true, true, true }), stepFence},
		"so does one that is being deleted":                                  {with(func(f *podFacts) { f.recorded, f.deleting, f.fenced = true, true, true }), stepFence},
		"a pod that never crossed is not fenced":                             {with(func(f *podFacts) { f.fenced = true }), stepWant},
		"a pod that ended is not fenced":                                     {with(func(f *podFacts) { f.taken, f.terminal, f.fenced = true, true, true }), stepFinal},
		"a vanished pod is unwanted":                                         {podFacts{wanted: true, portable: true, complete: true}, stepUnwant},
		"a vanished pod that is gone is dropped":                             {podFacts{taken: true, gone: true}, stepDrop},
		"a vanished pod that never crossed is dropped":                       {podFacts{}, stepDrop},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := decidePod(test.facts); got != test.want {
				t.Errorf("decidePod(%+v) = %d, want %d", test.facts, got, test.want)
			}
		})
	}
}

// Of all that can be the case, none of these may happen.
func TestDecidePodNeverHarms(t *testing.T) {
	bit := func(i, n int) bool { return i&(1<<n) != 0 }
	for i := range 1 << 12 {
		for _, o := range []ternary{unknown, yes, no} {
			f := podFacts{
				exists: bit(i, 0), deleting: bit(i, 1), terminal: bit(i, 2), recorded: bit(i, 3), portable: bit(i, 4), complete: bit(i, 5),
				wanted: bit(i, 6), taken: bit(i, 7), gone: bit(i, 8), deleteAcked: bit(i, 9), tolerates: bit(i, 10), fenced: bit(i, 11), offloading: o,
			}
			got := decidePod(f)
			switch {
			case got == stepWant && (f.terminal || f.gone || f.deleting || !f.exists):
				t.Errorf("%+v: a pod that ended or goes is wanted", f)
			case got == stepWant && !f.tolerates && !f.taken && !f.recorded && !f.wanted:
				t.Errorf("%+v: a pod is wanted that does not tolerate the taint", f)
			case got == stepUnwant && f.exists && !f.deleting:
				t.Errorf("%+v: a pod that is not deleted is unwanted", f)
			case got == stepFinalise && !f.deleting:
				t.Errorf("%+v: a pod that is not deleted is finalised", f)
			case got == stepFinalise && f.taken && !f.gone && !f.terminal:
				t.Errorf("%+v: a pod is finalised while it runs", f)
			case got == stepFence && (!f.fenced || !f.exists || f.terminal):
				t.Errorf("%+v: a pod is fenced that was not stopped", f)
			case got == stepFail && !f.gone:
				t.Errorf("%+v: a pod fails though the provider did not report it as gone", f)
			case got == stepNotApplicable && f.taken:
				t.Errorf("%+v: a pod that runs is called not applicable", f)
			case got == stepDrop && (f.exists || f.wanted && !f.gone && !f.deleteAcked):
				t.Errorf("%+v: a pod is forgotten", f)
			}
		}
	}
}

func TestLinkIsShownAsLostAfterAGrace(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	var l link
	for _, test := range []struct {
		name     string
		now      int
		wasReady bool
		change   func()
		want     bool
	}{
		{"a new node is not connected", 0, false, nil, false},
		{"a node that was ready stays so after a restart", 0, true, nil, true},
		{"but not for ever", 20, true, nil, false},
		{"it is up when the provider answers", 21, false, func() { l.set(true, at(21)) }, true},
		{"a short loss is not shown", 31, false, func() { l.set(false, at(30)) }, true},
		{"a long one is", 33, true, nil, false},
		{"and so is the return", 34, false, func() { l.set(true, at(34)) }, true},
	} {
		if test.change != nil {
			test.change()
		}
		if got, _ := l.shown(at(test.now), at(0), test.wasReady, 20*time.Second, 3*time.Second); got != test.want {
			t.Errorf("%s: shown as up = %v", test.name, got)
		}
	}
}
