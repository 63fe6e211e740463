package main

import (
	"context"
	"testing"
	"time"

	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/cmd/entente/internal/progress"
	"github.com/entente-dev/entente/peering"
)

// waits runs a command that waits for a cluster that changes, or not, and returns how
// often it polled and how long it took.
func waits(t *testing.T, w *world, check func(asked int) bool) (asked int, took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a := &app{out: t.Output(), errOut: t.Output(), now: time.Now, sleep: sleep, follow: progress.Follow}
	c, err := w.connect(t, target{label: "local"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.hangUp()
	start := time.Now()
	if err := a.progress(&printer.Flags{}).Poll(ctx, c.label, c.admin, "", func(context.Context) (bool, string, error) {
		asked++
		return check(asked), "something", nil
	}); err != nil {
		t.Fatal(err)
	}
	return asked, time.Since(start)
}

func TestWaitPollsAfterAChange(t *testing.T) {
	w := newWorld()
	w.consumer.live = make(chan struct{})
	// It changes as soon as it was asked: each change causes one request, with no poll
	// in between.
	asked, took := waits(t, w, func(asked int) bool {
		if asked < 4 {
			go func() { w.consumer.live <- struct{}{} }()
		}
		return asked == 4
	})
	if took < 3*progress.PollPause {
		t.Errorf("asked %d times within %s", asked, took)
	}
	if w.count("WatchPeers") != 1 || w.count("WatchEvents") != 1 {
		t.Errorf("requests are %v", w.consumer.requests)
	}
}

func TestWaitPollsSeldomWhileItWatches(t *testing.T) {
	w := newWorld()
	w.consumer.live = make(chan struct{})
	// Changes that no watch reports are polled for, but not often.
	if asked, took := waits(t, w, func(asked int) bool { return asked == 3 }); took < progress.PollFollowed {
		t.Errorf("asked %d times within %s", asked, took)
	}
}

func TestWaitPollsWithoutTheRightToWatch(t *testing.T) {
	w := newWorld()
	w.consumer.live = make(chan struct{})
	w.consumer.err = &peering.Error{Reason: peering.ReasonCallerNotAllowed, Message: "may not list foreignclusters"}
	asked, took := waits(t, w, func(asked int) bool { return asked == 4 })
	if took < 3*progress.PollEvery || took > 20*progress.PollFollowed {
		t.Errorf("asked %d times within %s", asked, took)
	}
	if w.count("WatchPeers") != 1 || w.count("WatchEvents") != 1 {
		t.Errorf("a caller that may not watch keeps trying: %v", w.consumer.requests)
	}
}
