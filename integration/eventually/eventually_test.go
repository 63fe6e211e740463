package eventually

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestIsWaitsUntilItIsSoAndSaysWhyNot(t *testing.T) {
	t.Parallel()
	missing, broken := errors.New("it is not there"), errors.New("it is broken")
	for name, tc := range map[string]struct {
		look func(ctx context.Context, since time.Duration) error
		want error
		// words are in the error, and took is how long it takes at least and at most.
		words       string
		least, most time.Duration
	}{
		"what is so already takes no time": {look: func(context.Context, time.Duration) error { return nil }},
		"what comes is seen soon": {
			look: func(_ context.Context, since time.Duration) error {
				if since < 5*time.Second {
					return missing
				}
				return nil
			},
			least: 5 * time.Second, most: 5*time.Second + last,
		},
		"a condition that is not met is reported when the time is up": {
			look: func(context.Context, time.Duration) error { return missing },
			want: missing, words: "waited 10.0s for rain: it is not there", least: 10 * time.Second, most: 10 * time.Second,
		},
		"a look that takes all of the time does not hide what was missing": {
			look: func(ctx context.Context, since time.Duration) error {
				if since == 0 {
					return missing
				}
				<-ctx.Done()
				return ctx.Err()
			},
			want: missing, words: "for rain", least: 10 * time.Second, most: 10 * time.Second,
		},
		"what cannot come any more ends it": {
			look: func(context.Context, time.Duration) error { return Permanent(broken) },
			want: broken, words: "rain: it is broken",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				err := Is(t.Context(), 10*time.Second, "rain", func(ctx context.Context) error { return tc.look(ctx, time.Since(begin)) })
				if took := time.Since(begin); took < tc.least || took > tc.most {
					t.Errorf("it took %s, want %s to %s", took, tc.least, tc.most)
				}
				if !errors.Is(err, tc.want) || (err != nil && !strings.Contains(err.Error(), tc.words)) {
					t.Errorf("error is %v, want %v that says %q", err, tc.want, tc.words)
				}
			})
		})
	}
}

func TestPermanentKeepsNil(t *testing.T) {
	t.Parallel()
	if err := Permanent(nil); err != nil {
		t.Error(err)
	}
}

func TestPollEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		looks := 0
		if err := Poll(ctx, 300*time.Millisecond, func() bool { looks++; return false }); !errors.Is(err, why) || looks != 4 {
			t.Errorf("error is %v after %d looks, want %v after 4", err, looks, why)
		}
		if err := Poll(t.Context(), time.Hour, func() bool { return true }); err != nil {
			t.Error(err)
		}
	})
}
