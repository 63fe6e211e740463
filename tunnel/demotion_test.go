package tunnel

import (
	"slices"
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

func TestANodeThatCeasedToBeAGatewayCountsAsOneUntilItHasHandedOver(t *testing.T) {
	start := time.Unix(1000, 0)
	uses := func(nodes ...string) func(string) bool {
		return func(n string) bool { return slices.Contains(nodes, n) }
	}
	var r retiring
	at := start
	next := func(what string, gateways []string, inUse func(string) bool, want ...string) {
		t.Helper()
		if got := r.next(at, gateways, inUse); !slices.Equal(got, want) {
			t.Errorf("%s: %v count as gateways, want %v", what, got, want)
		}
		at = at.Add(time.Second)
	}
	next("all are gateways", []string{"a", "b"}, uses("a"))
	next("one that carries is none any more", []string{"b"}, uses("a"), "a")
	next("it still carries", []string{"b"}, uses("a"), "a")
	next("it has handed over", []string{"b"}, uses("b"))
	next("it carries again, as a worker cannot", []string{"b"}, uses("a", "b"))
	next("it is a gateway again", []string{"a", "b"}, uses("b"))
	next("it is none, and carried nothing", []string{"b"}, uses("b"))
	next("it is a gateway again", []string{"a", "b"}, uses("a"))
	next("it is none", []string{"b"}, uses("a"), "a")
	next("it is one before it has handed over", []string{"a", "b"}, uses("a"))
	next("it is none again", []string{"b"}, uses("a"), "a")
	at = at.Add(demoteMost)
	next("it never hands over", []string{"b"}, uses("a"))
}
