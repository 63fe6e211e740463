package tunnel

import (
	"testing"
	"time"
)

func TestANodeThatCeasesToBeAGatewayHandsItsPeersOver(t *testing.T) {
	start := time.Unix(1000, 0)
	for what, c := range map[string]struct {
		was     bool
		carries time.Duration // for how long after it ceased
		want    time.Duration
	}{
		"a node that was none":                           {false, 0, 0},
		"a gateway that carried nothing":                 {true, 0, leaveLinger},
		"one whose peers another takes in half a second": {true, 500 * time.Millisecond, 400*time.Millisecond + leaveLinger},
		"one whose peers nobody takes":                   {true, time.Hour, demoteMost},
	} {
		t.Run(what, func(t *testing.T) {
			var m demotion
			if m.lasts(start, c.was, true) {
				t.Fatal("it hands over before it ceases to be a gateway")
			}
			const step = 100 * time.Millisecond
			lasted := time.Duration(0)
			for m.lasts(start.Add(lasted), false, lasted < c.carries) {
				lasted += step
			}
			if lasted != c.want {
				t.Errorf("it handed over for %v, want %v", lasted, c.want)
			}
			if m.lasts(start.Add(lasted+step), false, true) {
				t.Error("it hands over again")
			}
			m.lasts(start.Add(lasted+step), true, false)
			if !m.lasts(start.Add(lasted+2*step), false, false) {
				t.Error("it does not hand over when it was a gateway again")
			}
		})
	}
}
