package clock

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// rig is a node whose clock can be set, and its API server.
type rig struct {
	*Clock
	passed, set, apiServer time.Duration
}

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newRig() *rig {
	r := &rig{}
	r.Clock = newClock(func() time.Time { return began.Add(r.passed + r.set) }, func() time.Duration { return r.passed })
	return r
}

// pass lets time pass, with a response of the API server at its end.
func (r *rig) pass(d time.Duration) {
	r.passed += d
	r.note(began.Add(r.passed + r.apiServer).Format(http.TimeFormat))
}

func TestClockInDoubt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		happens func(*rig)
		says    string // empty: there is no doubt
	}{
		"nothing was ever heard":                {happens: func(*rig) {}},
		"it runs as the API server's":           {happens: func(r *rig) { r.pass(time.Hour) }},
		"a little apart":                        {happens: func(r *rig) { r.pass(time.Hour); r.set = 50 * time.Second; r.pass(time.Second) }},
		"it is set ahead, and no other":         {happens: func(r *rig) { r.pass(time.Hour); r.set = 24 * time.Hour; r.pass(time.Second) }, says: "24h0m0s ahead of the API server's"},
		"it is set ahead a moment ago":          {happens: func(r *rig) { r.pass(time.Hour); r.set = 24 * time.Hour }, says: "24h0m0s ahead of the API server's"},
		"it stays ahead of the API server's":    {happens: func(r *rig) { r.pass(time.Hour); r.set = 24 * time.Hour; r.pass(time.Minute); r.pass(2 * settles) }, says: "ahead of the API server's"},
		"it is wrong from the beginning":        {happens: func(r *rig) { r.apiServer = -24 * time.Hour; r.pass(time.Second) }, says: "24h0m0s ahead of the API server's"},
		"it is behind":                          {happens: func(r *rig) { r.apiServer = time.Hour; r.pass(time.Second) }, says: "1h0m0s behind the API server's"},
		"both are set ahead, as on one machine": {happens: func(r *rig) { r.set, r.apiServer = 24*time.Hour, 24*time.Hour; r.pass(time.Second) }, says: "was set, and is 24h0m0s ahead of"},
		"both are set back again": {happens: func(r *rig) {
			r.set, r.apiServer = 24*time.Hour, 24*time.Hour
			r.pass(time.Minute)
			r.set, r.apiServer = 0, 0
			r.pass(time.Second)
		}},
		"both stay so for long": {happens: func(r *rig) { r.set, r.apiServer = 24*time.Hour, 24*time.Hour; r.pass(time.Second); r.pass(settles) }},
		"both are set again then": {happens: func(r *rig) {
			r.set, r.apiServer = 24*time.Hour, 24*time.Hour
			r.pass(time.Second)
			r.pass(settles)
			r.set, r.apiServer = 48*time.Hour, 48*time.Hour
			r.pass(time.Second)
		}, says: "was set, and is 24h0m0s ahead of"},
		"a date that is malformed": {happens: func(r *rig) { r.pass(time.Hour); r.note("yesterday"); r.note("") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig()
			tc.happens(r)
			if got := r.Doubt(); (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
				t.Errorf("it says %q, want %q", got, tc.says)
			}
		})
	}
}

func TestEachResponseTellsTheTime(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	c := New()
	if got := c.Doubt(); got != "" {
		t.Errorf("before any response it says %q", got)
	}
	resp, err := (&http.Client{Transport: c.Wrap(server.Client().Transport)}).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if got := c.Doubt(); !strings.Contains(got, "1h0m") || !strings.Contains(got, "ahead of") {
		t.Errorf("it says %q", got)
	}
}
