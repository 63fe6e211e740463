package probe

import (
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

func FuzzRekey(f *testing.F) {
	for _, r := range []rekey{
		{kind: rekeyAsk, in: 300 * time.Millisecond, key: KeyTag{1}},
		{kind: rekeyFollow, key: KeyTag{2}},
		{kind: rekeyOff, in: rekeyMost, key: KeyTag{3}},
		{kind: 9, key: KeyTag{1}},
		{kind: rekeyAsk, in: time.Hour, key: KeyTag{1}},
		{kind: rekeyAsk},
	} {
		f.Add(r.encode())
	}
	f.Add(probe{}.encode(rekeyLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := decodeRekey(b)
		if !ok {
			return
		}
		if _, both := decodeProbe(b); both {
			t.Error("it is a probe as well")
		}
		if r.in < 0 || r.in > rekeyMost || r.key == (KeyTag{}) {
			t.Errorf("beyond the limits: %+v", r)
		}
		if again, ok := decodeRekey(r.encode()); !ok || again != r {
			t.Errorf("%+v becomes %+v", r, again)
		}
	})
}

func TestAnotherNodeIsFollowedAfterItReplacedItsKey(t *testing.T) {
	now := time.Unix(1e9, 0)
	key, other := KeyTagOf(plan.PublicKey{1}), KeyTagOf(plan.PublicKey{2})
	ask := func(in time.Duration) rekey { return rekey{kind: rekeyAsk, in: in, key: key} }
	var f Follow
	f, ok := f.asked(ask(0), key, now)
	if !ok || !f.At.IsZero() {
		t.Errorf("the question alone: %+v, %v", f, ok)
	}
	if got, ok := f.asked(ask(time.Second), other, now); ok || got != f {
		t.Errorf("a key that it did not announce: %+v, %v", got, ok)
	}
	if got, ok := f.asked(ask(time.Second), KeyTag{}, now); ok || got != f {
		t.Errorf("it announced none: %+v, %v", got, ok)
	}
	f, _ = f.asked(ask(300*time.Millisecond), key, now)
	if want := now.Add(300*time.Millisecond + RekeyMargin); f.At != want {
		t.Errorf("followed at %v, want %v", f.At, want)
	}
	// One that was on its way for longer makes it no later, one that was quicker makes it earlier.
	late, _ := f.asked(ask(250*time.Millisecond), key, now.Add(90*time.Millisecond))
	quick, _ := f.asked(ask(250*time.Millisecond), key, now.Add(30*time.Millisecond))
	if late != f || !quick.At.Equal(f.At.Add(-20*time.Millisecond)) {
		t.Errorf("late %+v, quick %+v, before %+v", late, quick, f)
	}
	again, _ := f.asked(rekey{kind: rekeyAsk, in: time.Second, key: other}, other, now)
	if again.Key != other || again.At != now.Add(time.Second+RekeyMargin) {
		t.Errorf("another key: %+v", again)
	}
	if !(KeyTagOf(plan.PublicKey{}) == KeyTag{}) || key == other {
		t.Error("two keys have the same tag")
	}
}
