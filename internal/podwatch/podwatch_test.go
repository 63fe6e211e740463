package podwatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/entente-dev/entente/peering"
)

// A consumer gets the list of its objects before its watch begins. It has to receive deletes in
// between, or it would wait for those pods indefinitely.
func TestANewWatchGetsRecentDeletions(t *testing.T) {
	t.Parallel()
	clock := time.Unix(1_800_000_000, 0)
	h := New(nil)
	h.now = func() time.Time { return clock }
	ref := func(uid string) peering.PodStatus {
		return peering.PodStatus{Ref: peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web", UID: uid}}
	}
	heard := func(contract string) []string {
		s, leave := h.Subscribe(contract, func(peering.PodEvent) {})
		defer leave()
		_, gone := s.Take()
		var out []string
		for _, r := range gone {
			out = append(out, r.Ref.UID)
		}
		if woken := len(s.Wake) > 0; woken != (out != nil) {
			t.Errorf("of %s there are %v, woken %t", contract, out, woken)
		}
		return out
	}
	h.Gone("c-1", ref("long ago"))
	clock = clock.Add(leftKept)
	h.Gone("c-1", ref("a"))
	h.Gone("c-2", ref("b"))
	clock = clock.Add(time.Second)
	if diff := cmp.Diff([]string{"a"}, heard("c-1")); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
	// A watch receives it once.
	s, leave := h.Subscribe("c-3", func(peering.PodEvent) {})
	defer leave()
	h.Gone("c-3", ref("c"))
	if _, gone := s.Take(); len(gone) != 1 {
		t.Errorf("heard %v", gone)
	}
	for i := range 2 * maxLeft {
		h.Gone("c-2", ref(fmt.Sprint(i)))
	}
	if got := heard("c-2"); len(got) != maxLeft || got[maxLeft-1] != fmt.Sprint(2*maxLeft-1) {
		t.Errorf("%d are remembered", len(got))
	}
	clock = clock.Add(leftKept + time.Second)
	if got := heard("c-1"); got != nil || len(h.left) != 0 {
		t.Errorf("later %v, of %d contracts", got, len(h.left))
	}
}

func TestTheLastStatusesOfPodsThatWentAreBounded(t *testing.T) {
	t.Parallel()
	h := New(func(status []byte) []byte { return status[:min(len(status), 9)] })
	last := func(uid string, bytes int) peering.PodStatus {
		return peering.PodStatus{Ref: peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web", UID: uid}, Status: make([]byte, bytes)}
	}
	for i := range 4 {
		h.Gone("c-1", last(fmt.Sprint(i), maxLeftBytes/2))
	}
	// Nothing more is known of one that went than before.
	h.Gone("c-1", peering.PodStatus{Ref: last("3", 0).Ref})
	s, leave := h.Subscribe("c-1", func(peering.PodEvent) {})
	defer leave()
	_, gone := s.Take()
	bytes := map[string]int{}
	for _, g := range gone {
		if !g.Gone {
			t.Errorf("%s is not reported as gone", g.Ref.UID)
		}
		bytes[g.Ref.UID] += len(g.Status)
	}
	if diff := cmp.Diff(map[string]int{"0": 9, "1": 9, "2": maxLeftBytes / 2, "3": maxLeftBytes / 2}, bytes); diff != "" {
		t.Errorf("bytes of statuses (-want +got):\n%s", diff)
	}
}
