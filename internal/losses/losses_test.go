package losses

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestLossesAreReadBackWithinBounds(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	since := now.Add(-3 * time.Minute)
	closed := func(until time.Time) *Losses {
		return &Losses{since: since, until: until, of: map[string]*namespaceLosses{"shop": {closed: until, pause: 4 * time.Minute}}}
	}
	shut := closed(now.Add(time.Minute))
	for name, tc := range map[string]struct {
		change        func(*corev1.NodeCondition)
		closed, pause time.Duration
	}{
		"as it was":             {func(*corev1.NodeCondition) {}, time.Minute, 4 * time.Minute},
		"never":                 {func(c *corev1.NodeCondition) { c.Status = corev1.ConditionFalse }, 0, 0},
		"another's condition":   {func(c *corev1.NodeCondition) { c.Type = corev1.NodeReady }, 0, 0},
		"another's words":       {func(c *corev1.NodeCondition) { c.Message = "soon" }, 0, 0},
		"no words":              {func(c *corev1.NodeCondition) { c.Message = "" }, 0, 0},
		"longer than any pause": {func(c *corev1.NodeCondition) { c.Message = closed(now.AddDate(1, 0, 0)).NodeCondition(now).Message }, MaxPause, 4 * time.Minute},
		"an endless pause":      {func(c *corev1.NodeCondition) { c.Message = strings.ReplaceAll(c.Message, "4m0s", "9999h") }, time.Minute, MaxPause},
		"a negative pause":      {func(c *corev1.NodeCondition) { c.Message = strings.ReplaceAll(c.Message, "4m0s", "-1h") }, time.Minute, MinPause},
		"not a time":            {func(c *corev1.NodeCondition) { c.Message = strings.ReplaceAll(c.Message, "until 2", "until x") }, 0, 0},
	} {
		c := shut.NodeCondition(now)
		tc.change(&c)
		var l Losses
		l.Restore(c, now)
		want := Losses{}
		if tc.closed > 0 {
			of := namespaceLosses{count: Max - MaxAgain, at: now.Add(tc.closed), last: now, closed: now.Add(tc.closed), pause: tc.pause}
			want = Losses{since: since, until: of.closed, of: map[string]*namespaceLosses{"shop": &of}}
		}
		if !reflect.DeepEqual(l, want) {
			t.Errorf("%s: got %+v, want %+v", name, l, want)
		}
	}
}

func TestLossesPauseLongerEachTimeAndAreForgotten(t *testing.T) {
	var l Losses
	now := time.Unix(1_000_000, 0)
	lose := func() time.Duration {
		for !l.Add("shop", now) {
			now = now.Add(time.Second)
		}
		return l.Closed("shop").Sub(now)
	}
	for want := MinPause; ; want *= 2 {
		if got := lose(); got != min(want, MaxPause) {
			t.Fatalf("the pause is %s, want %s", got, min(want, MaxPause))
		}
		now = l.Closed("shop")
		if len(l.allClosed(now)) > 0 {
			t.Fatal("it is closed after its end")
		}
		if want > 4*MaxPause {
			break
		}
	}
	now = now.Add(forgottenAfter)
	if got := lose(); got != MinPause {
		t.Errorf("after a long time without losses the pause is %s", got)
	}
	now = now.Add(forgottenAfter)
	if l.Add("bank", now); len(l.of) != 1 {
		t.Errorf("the losses of %d namespaces are remembered, want those of one", len(l.of))
	}
}

func TestLossesOfManyNamespacesAreShownInPart(t *testing.T) {
	var l Losses
	now := time.Unix(1_000_000, 0)
	for i := range maxShown + 5 {
		for !l.Add(fmt.Sprint("ns-", i), now) {
			now = now.Add(time.Millisecond)
		}
	}
	c := l.NodeCondition(now)
	if !strings.HasSuffix(c.Message, "), and 5 more") || c.LastTransitionTime.Time.Equal(now) {
		t.Errorf("the condition is %+v", c)
	}
	var again Losses
	again.Restore(c, now)
	if closed := again.allClosed(now); len(closed) != maxShown {
		t.Errorf("%d namespaces are closed after a restart, want %d", len(closed), maxShown)
	}
}
