package fencing

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

func TestNotesAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	want := Fence{Namespace: "shop", Contract: "c-1", Length: 5 * time.Minute, LastSeen: time.Unix(1_800_000_000, 0).UTC()}
	key, note := NoteOf(want)
	got := Noted("shop", map[string]string{key: note, "example.org/other": "x"})
	if len(got) != 1 || got[0] != want {
		t.Errorf("%q: %q is read as %+v", key, note, got)
	}
	if _, ok := NotedFor("shop", "c-2", map[string]string{key: note}); ok {
		t.Error("another contract has the fence, too")
	}
	for _, bad := range []string{"", " ", "300", "300 ", "300 yesterday", "x 2027-01-15T08:00:00Z", "99999999999 2027-01-15T08:00:00Z"} {
		// It exists, and nothing is known of the consumer: no pod runs under it.
		if f, ok := NotedFor("shop", "c-1", map[string]string{key: bad}); !ok || !f.LastSeen.IsZero() || f.Length != 0 {
			t.Errorf("%q is read as %+v, %v", bad, f, ok)
		}
	}
}

func TestHomeCountsOnWhatWasAgreed(t *testing.T) {
	t.Parallel()
	const shop, fence = "shop", 5 * time.Minute
	for name, test := range map[string]struct {
		course func(h *Home)
		want   time.Duration
		over   time.Duration
		// answered: the provider agreed to what it was asked for last.
		answered bool
	}{
		"nothing was asked for":                          {func(*Home) {}, 0, 0, false},
		"it was asked for":                               {func(h *Home) { h.Ask(shop, fence, 0) }, 0, 0, false},
		"it was accepted, and the provider does not ask": {func(h *Home) { h.Ask(shop, fence, 0); h.Took(shop) }, 0, 0, false},
		"it was asked whether it is there":               {func(h *Home) { h.Ask(shop, fence, 0); h.Asked() }, 0, 0, false},
		"both":                                           {func(h *Home) { h.Ask(shop, fence, 0); h.Took(shop); h.Asked() }, fence, fence + 8*time.Second, true},
		"another namespace agreed":                       {func(h *Home) { h.Ask("bank", fence, 0); h.Took("bank"); h.Asked() }, 0, 0, false},
		"a minute ago":                                   {func(h *Home) { h.Ask(shop, fence, 0); h.Took(shop); h.Asked(); time.Sleep(time.Minute) }, fence, fence + 8*time.Second - time.Minute, true},
		"and a ping since":                               {func(h *Home) { h.Ask(shop, fence, 0); h.Took(shop); h.Asked(); time.Sleep(time.Minute); h.Asked() }, fence, fence + 8*time.Second, true},
		"with the process before this one":               {func(h *Home) { h.Ask(shop, fence, fence) }, fence, fence + 8*time.Second, false},
		"a longer one than with that one":                {func(h *Home) { h.Ask(shop, 2*fence, fence) }, 2 * fence, 2*fence + 11*time.Second, false},
		"none any more":                                  {func(h *Home) { h.Ask(shop, 0, fence) }, 0, 0, false},
		"a shorter one that is not taken yet":            {func(h *Home) { h.Ask(shop, 2*fence, 2*fence); h.Ask(shop, fence, 0); h.Asked() }, 2 * fence, 2*fence + 11*time.Second, false},
		"a shorter one that is taken, and asked":         {func(h *Home) { h.Ask(shop, 2*fence, 2*fence); h.Ask(shop, fence, 0); h.Took(shop); h.Asked() }, fence, fence + 8*time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHome()
				test.course(&h)
				over, ok := h.Over(shop)
				if !ok {
					over = 0
				}
				if h.Answered(shop) != test.answered {
					t.Errorf("it was answered: %t", !test.answered)
				}
				if got := h.Counts(shop); got != test.want || ok != (test.want > 0) || over != test.over {
					t.Errorf("it counts on %s, over in %s (%v); want %s, %s", got, over, ok, test.want, test.over)
				}
			})
		})
	}
}

// A namespace changes its mind, the line is cut and heals, and processes at home die, each time
// with nothing but what was written down. Home never counts on a shorter fence than the provider
// keeps to, nor on one that it does not keep to.
func TestHomeNeverCountsOnLessThanTheProviderKeepsTo(t *testing.T) {
	t.Parallel()
	const shop = "shop"
	counted, restarts := 0, 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 38))
		var wants, written, keeps, asked Ticks
		h, cut, begins := NewHome(), false, true
		for step := range 200 {
			switch r.IntN(8) {
			case 0:
				wants = []Ticks{0, 3 * time.Minute, 5 * time.Minute, 10 * time.Minute}[r.IntN(4)]
			case 1:
				cut = !cut
			case 2: // as the reconciler writes the status
				switch agreed := h.Counts(shop); {
				case wants == 0:
					written = 0
				case begins: // there is no virtual node yet, and what was recorded stays
				case agreed > 0:
					written = max(agreed, wants)
				default:
					written = 0
				}
			case 3:
				h, begins = NewHome(), true
				restarts++
			case 4, 5:
				asked = AskFor(wants, written)
				h.Ask(shop, asked, written)
				begins = false
			case 6:
				if !cut && !begins { // it accepts what it is asked for, and responds, or the response is lost
					keeps = asked
					if r.IntN(2) == 0 {
						h.Took(shop)
					}
				}
			case 7:
				if !cut && !begins && keeps > 0 {
					h.Asked()
				}
			}
			got := h.Counts(shop)
			if got > 0 {
				counted++
			}
			if h.Answered(shop) && got != keeps {
				t.Fatalf("seed %d, step %d: home takes %s for agreed, and the provider keeps to %s", seed, step, got, keeps)
			}
			if got > 0 && (keeps == 0 || got < keeps) {
				t.Fatalf("seed %d, step %d: home counts on %s, and the provider keeps to %s; wanted is %s, written %s", seed, step, got, keeps, wants, written)
			}
		}
	}
	if counted < 10_000 || restarts < 10_000 {
		t.Errorf("home counted on a fence %d times, over %d restarts: the courses show nothing", counted, restarts)
	}
}
