package pake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

var (
	run    = Run{Purpose: []string{"a test", "blue"}, Initiator: "alice", Responder: "bob", Channel: bytes.Repeat([]byte{7}, 32)}
	secret = Secret("correct horse battery staple")
)

// meet has two sides make a run, each with what it believes.
func meet(t *testing.T, a, b Secret, at, bt Run) (atA, atB error) {
	t.Helper()
	i, err := Initiate(a, at)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Respond(b, bt, i.Share())
	if err != nil {
		t.Fatal(err)
	}
	confirmation, atA := i.Finish(r.Share(), r.Confirmation())
	return atA, r.Finish(confirmation)
}

func TestTheSameSecretInTheSameRunIsProvenToBoth(t *testing.T) {
	if a, b := meet(t, secret, secret, run, run); a != nil || b != nil {
		t.Errorf("%v, %v", a, b)
	}
	if a, b := meet(t, secret, Secret(string(secret)+"\n"), run, run); a != nil || b != nil {
		t.Errorf("a newline at the end of a file: %v, %v", a, b)
	}
}

func TestADifferentRunProvesNothing(t *testing.T) {
	for name, change := range map[string]func(*Run, *Secret){
		"the secret":                         func(_ *Run, s *Secret) { *s = Secret("correct horse battery stapl3") },
		"the case of the secret":             func(_ *Run, s *Secret) { *s = Secret("Correct horse battery staple") },
		"a space after the secret":           func(_ *Run, s *Secret) { *s = Secret(string(secret) + " ") },
		"two newlines after the secret":      func(_ *Run, s *Secret) { *s = Secret(string(secret) + "\n\n") },
		"the channel":                        func(r *Run, _ *Secret) { r.Channel = bytes.Repeat([]byte{8}, 32) },
		"the initiator":                      func(r *Run, _ *Secret) { r.Initiator = "mallory" },
		"the responder":                      func(r *Run, _ *Secret) { r.Responder = "mallory" },
		"which side initiates":               func(r *Run, _ *Secret) { r.Initiator, r.Responder = r.Responder, r.Initiator },
		"the purpose":                        func(r *Run, _ *Secret) { r.Purpose = []string{"a test", "green"} },
		"where the parts of a purpose begin": func(r *Run, _ *Secret) { r.Purpose = []string{"a testb", "lue"} },
		"which part is the purpose":          func(r *Run, _ *Secret) { r.Purpose, r.Initiator = nil, "a testbluealice" },
	} {
		t.Run(name, func(t *testing.T) {
			other, s := run, secret
			change(&other, &s)
			if a, b := meet(t, secret, s, run, other); !errors.Is(a, ErrMismatch) || !errors.Is(b, ErrMismatch) {
				t.Errorf("%v, %v", a, b)
			}
			if a, b := meet(t, s, secret, other, run); !errors.Is(a, ErrMismatch) || !errors.Is(b, ErrMismatch) {
				t.Errorf("the other way round: %v, %v", a, b)
			}
		})
	}
}

func TestARunIsFinishedOnce(t *testing.T) {
	i, err := Initiate(secret, run)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Respond(secret, run, i.Share())
	if err != nil {
		t.Fatal(err)
	}
	wrong := bytes.Clone(r.Confirmation())
	wrong[0] ^= 1
	if _, err := i.Finish(r.Share(), wrong); !errors.Is(err, ErrMismatch) {
		t.Errorf("a confirmation with one bit changed: %v", err)
	}
	if c, err := i.Finish(r.Share(), r.Confirmation()); err == nil || c != nil {
		t.Errorf("a second try of the initiator: %x, %v", c, err)
	}
	right := bytes.Clone(r.expected)
	if err := r.Finish(nil); !errors.Is(err, ErrMismatch) {
		t.Errorf("no confirmation: %v", err)
	}
	for name, c := range map[string][]byte{"the right one": right, "none": nil} {
		if err := r.Finish(c); !errors.Is(err, ErrMismatch) {
			t.Errorf("a second try of the responder, %s: %v", name, err)
		}
	}
}

func TestAReflectedMessageProvesNothing(t *testing.T) {
	i, err := Initiate(secret, run)
	if err != nil {
		t.Fatal(err)
	}
	// With the initiator's own share, and the confirmation that another run of the same
	// would have.
	if _, err := i.Finish(i.Share(), bytes.Repeat([]byte{1}, ConfirmationLen)); !errors.Is(err, ErrMismatch) {
		t.Errorf("the initiator's share: %v", err)
	}
	if i, err = Initiate(secret, run); err != nil {
		t.Fatal(err)
	}
	r, err := Respond(secret, run, i.Share())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Finish(r.Confirmation()); !errors.Is(err, ErrMismatch) {
		t.Errorf("the responder's confirmation: %v", err)
	}
	// Even where both shares are the same the two confirmations differ.
	if a, b := confirmations(run.Channel, []byte{1}, i.share, i.share); bytes.Equal(a, b) {
		t.Error("one confirmation is good for both")
	}
}

func TestAMalformedShareEndsTheRun(t *testing.T) {
	for name, share := range badShares(t) {
		if r, err := Respond(secret, run, share); !errors.Is(err, ErrShare) || r != nil {
			t.Errorf("responder, %s: %v", name, err)
		}
		i, err := Initiate(secret, run)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := i.Finish(share, make([]byte, ConfirmationLen)); !errors.Is(err, ErrShare) || c != nil {
			t.Errorf("initiator, %s: %v", name, err)
		}
	}
}

func TestSecretsThatCanBeUsed(t *testing.T) {
	s := func(n int, end string) Secret { return Secret(strings.Repeat("x", n) + end) }
	for name, tc := range map[string]struct {
		secret Secret
		ok     bool
	}{
		"none":                               {nil, false},
		"a newline only":                     {Secret("\n"), false},
		"too short":                          {s(MinSecret-1, ""), false},
		"too short with its newline":         {s(MinSecret-1, "\n"), false},
		"too short with CRLF":                {s(MinSecret-1, "\r\n"), false},
		"a carriage return counts by itself": {s(MinSecret-1, "\r"), true},
		"the shortest":                       {s(MinSecret, ""), true},
		"the longest":                        {s(MaxSecret, ""), true},
		"the longest with a newline":         {s(MaxSecret, "\n"), true},
		"the longest with two":               {s(MaxSecret, "\n\n"), false},
		"too long":                           {s(MaxSecret+1, ""), false},
	} {
		_, initiate := Initiate(tc.secret, run)
		if err := tc.secret.Check(); (err == nil) != tc.ok || (initiate == nil) != tc.ok || err != nil && !errors.Is(err, ErrSecret) {
			t.Errorf("%s: %v, %v", name, err, initiate)
		}
	}
	if got, err := s(MinSecret, "\r\n").trimmed(); err != nil || len(got) != MinSecret {
		t.Errorf("of CRLF %q is left: %v", got, err)
	}
	unbound := run
	unbound.Channel = nil
	if _, err := Initiate(secret, unbound); err == nil {
		t.Error("a run without a channel")
	}
}

// The messages differ in each run, whether or not the secret is the same: recorded runs are of no
// use for a dictionary attack without the scalars, of which each run has two of its own.
func TestMessagesDoNotFollowFromTheSecretAlone(t *testing.T) {
	seen := map[string]bool{}
	note := func(what string, b []byte) {
		if seen[string(b)] {
			t.Errorf("%s is the same in two runs", what)
		}
		if len(b) > 0 && bytes.Contains(b, secret[:8]) {
			t.Errorf("%s has a part of the secret", what)
		}
		seen[string(b)] = true
	}
	for range 64 {
		i, err := Initiate(secret, run)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Respond(secret, run, i.Share())
		if err != nil {
			t.Fatal(err)
		}
		c, err := i.Finish(r.Share(), r.Confirmation())
		if err != nil {
			t.Fatal(err)
		}
		note("the initiator's share", i.Share())
		note("the responder's share", r.Share())
		note("the responder's confirmation", r.Confirmation())
		note("the initiator's confirmation", c)
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	i, err := Initiate(secret, run)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", secret, "in", struct{ S Secret }{secret})
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", secret, "in", struct{ S Secret }{secret})
	asJSON, err := json.Marshal(map[string]any{"secret": secret})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		log.String(), string(asJSON), fmt.Sprintf("%v %+v %#v %s %q %x %d", secret, secret, secret, secret, secret, secret, secret),
		fmt.Sprint(struct{ S Secret }{secret}), fmt.Sprintf("%v %+v", i, *i),
	} {
		for _, leak := range []string{string(secret), fmt.Sprintf("%x", []byte(secret)), fmt.Sprint([]byte(secret)), "Y29ycmVjdCBob3JzZ", i.scalar.String()} {
			if strings.Contains(text, leak) {
				t.Errorf("%s shows %s", text, leak)
			}
		}
	}
}
