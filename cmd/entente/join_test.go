package main

import (
	"strings"
	"testing"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
)

const someID = "k2a7k2a7k2a7k2a7k2a7k2a7k2a7k2a7"

func TestTokensAreCreatedListedAndRevoked(t *testing.T) {
	w := newWorld()
	golden(t, "token", w,
		[]string{"token", "create"}, []string{"token", "create", "--ttl", "2m", "-o", "json"}, []string{"token", "create", "--ttl", "1h"},
		[]string{"token", "list"}, []string{"token", "list", "-o", "yaml"},
		[]string{"token", "revoke", "4k7qxw2m"}, []string{"token", "revoke", "tokens/4k7qxw2m", "-o", "json"}, []string{"token", "revoke", "zzz"}, []string{"token", "revoke"},
	)
	sent(t, w.consumer, "CreateToken 15m0s", "CreateToken 2m0s", "RevokeToken tokens/4k7qxw2m", "RevokeToken tokens/4k7qxw2m", "RevokeToken tokens/zzz")
}

func TestTokenCreateShowsTheNextStepOnATerminal(t *testing.T) {
	w := newWorld()
	w.terminal = true
	golden(t, "token-terminal", w, []string{"token", "create"})
}

func TestJoinByToken(t *testing.T) {
	w := newWorld()
	golden(t, "join-token", w,
		[]string{"join", "ent1.fake-token.checksum", "--name", "office"}, []string{"join", "ent1.fake-token.checksum", "-o", "json"},
		[]string{"join", "hello"}, []string{"join", ""},
	)
	sent(t, w.consumer, "JoinPeer ent1.fake-token.checksum office", "JoinPeer ent1.fake-token.checksum", "JoinPeer hello")
}

func TestJoinSaysThatAKnownClusterKeepsItsName(t *testing.T) {
	for _, whom := range []string{"ent1.fake-token.checksum", "provider.example:7443"} {
		w := newWorld()
		out, errOut, code := w.run(t, "", "join", whom, "--name", "office")
		if want := "NOTE   (local) it is known here as provider already and keeps that name; --name office was not applied"; code != exit.OK || !strings.Contains(out, want) {
			t.Errorf("exit %d, want %q\n%s%s", code, want, out, errOut)
		}
		if out, _, _ := w.run(t, "", "join", whom, "--name", "provider"); strings.Contains(out, "NOTE") {
			t.Errorf("the name that it has: %s", out)
		}
	}
}

func TestJoinReadsATokenFromAPipe(t *testing.T) {
	w := newWorld()
	if _, errOut, code := w.run(t, "  ent1.piped.token \n", "join", "-"); code != 0 {
		t.Errorf("exit %d: %s", code, errOut)
	}
	if got := w.consumer.requests[0]; got != "JoinPeer ent1.piped.token" {
		t.Errorf("sent %q", got)
	}
	if _, _, code := w.run(t, "\n", "join", "-"); code != exit.Usage {
		t.Errorf("an empty line: exit %d", code)
	}
}

func TestJoinNeverRepeatsAToken(t *testing.T) {
	for _, token := range []string{"ent1.s3cret.checksum", "ent1.s3cret:abc", "ent9.s3cret", "ent1.s3 cret"} {
		w := newWorld()
		w.hidden = true
		out, errOut, code := w.run(t, "", "join", token)
		if code != exit.Failed || strings.Contains(out+errOut, "s3") {
			t.Errorf("%s: exit %d\n%s%s", token, code, out, errOut)
		}
	}
}

func TestJoinByIntroductionShowsTheCodeAndTheNextSteps(t *testing.T) {
	w := newWorld()
	golden(t, "join-introduction", w,
		[]string{"join", "office.example:7443", "--name", "office"}, []string{"join", "[2001:db8::1]:7443", "-o", "json"},
		[]string{"info"}, []string{"info", "peer"},
	)
	sent(t, w.consumer, "IntroducePeer office.example:7443  office false", "IntroducePeer [2001:db8::1]:7443   false")
	w.hidden = true
	golden(t, "join-unreachable", w, []string{"join", "office.example:7443"})
}

func TestJoinByIDApprovesAtOnce(t *testing.T) {
	w := newWorld()
	golden(t, "join-id", w,
		[]string{"join", someID + "@office.example:7443"},
		[]string{"join", "office@office.example:7443"}, []string{"join", someID + "@office"}, []string{"join", someID + "@"},
	)
	sent(t, w.consumer, "IntroducePeer office.example:7443 "+someID+"  true")
}

func TestApproveComparesCodes(t *testing.T) {
	w := newWorld()
	w.introduced = true
	golden(t, "approve", w,
		[]string{"approve", "provider", "--code", "042918"}, []string{"approve", "provider"}, []string{"approve", "provider", "--code", "42"},
		[]string{"approve", "nobody"}, []string{"approve", "provider", "--code", "042 917"}, []string{"approve", "provider", "--yes", "-o", "yaml"},
	)
	sent(t, w.consumer, "ApprovePeer peers/provider 042918", "ApprovePeer peers/nobody", "ApprovePeer peers/provider 042 917", "ApprovePeer peers/provider")
	for answer, want := range map[string]bool{"y\n": true, "\n": false} {
		w := newWorld()
		w.introduced = true
		_, errOut, code := w.run(t, answer, "approve", "provider")
		if (code == exit.OK) != want || (w.decision == "Approved") != want || !strings.Contains(errOut, "The code for provider is 042 917 here.") {
			t.Errorf("answer %q: exit %d, %s\n%s", answer, code, w.decision, errOut)
		}
	}
}

func TestDenyNamesThePodsThatEnd(t *testing.T) {
	w := peered()
	golden(t, "deny", w, []string{"deny", "provider"}, []string{"info"}, []string{"deny", "nobody"})
	for answer, want := range map[string]bool{"y\n": true, "n\n": false} {
		w := peered()
		_, errOut, code := w.run(t, answer, "deny", "provider")
		if (code == exit.OK) != want || (w.decision == "Denied") != want || !strings.Contains(errOut, "The contracts with provider end at once, and 3 pods under them will be killed.") {
			t.Errorf("answer %q: exit %d, %s\n%s", answer, code, w.decision, errOut)
		}
	}
	w = newWorld()
	w.introduced = true
	if _, errOut, code := w.run(t, "n\n", "deny", "provider"); code != exit.OK {
		t.Errorf("without pods that end it asks: exit %d %s", code, errOut)
	}
}

func TestRequestsAreListedApprovedAndDenied(t *testing.T) {
	w := newWorld()
	golden(t, "requests-none", w, []string{"requests"}, []string{"requests", "-o", "json"})
	w.joined = true
	golden(t, "requests", w,
		[]string{"requests"}, []string{"requests", "provider", "-o", "yaml"},
		[]string{"approve", "request", "provider/5f1d"}, []string{"approve", "request", "peers/provider/requests/5f1d", "-o", "json"},
		[]string{"approve", "request", "provider/gone"}, []string{"approve", "request", "5f1d"}, []string{"approve", "request", "a/b/c"},
		[]string{"deny", "request", "provider/5f1d"},
	)
	sent(t, w.consumer, "ApprovePeeringRequest peers/provider/requests/5f1d", "ApprovePeeringRequest peers/provider/requests/5f1d",
		"ApprovePeeringRequest peers/provider/requests/gone", "DenyPeeringRequest peers/provider/requests/5f1d")
}

func TestInterruptedJoinShowsItsStateAndHowToFinish(t *testing.T) {
	id := strings.Repeat("p", 32)
	for _, tc := range []struct {
		name, arg, want string
	}{
		{"by a token", "ent1.fake-token.checksum", "the other side may know this cluster already"},
		{"by an ID", id + "@office.example:7443", "this cluster knows the other one, provider, and does not trust it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			w.interruptJoin = true
			out, errOut, code := w.run(t, "", "join", tc.arg)
			if code != exit.Interrupted || out != "" || !strings.Contains(errOut, "interrupted while joining: "+tc.want) || strings.Contains(errOut, "context canceled") {
				t.Errorf("exit %d: %s%s", code, out, errOut)
			}
			for _, next := range []string{"run the same command again", "entente unpeer PEER --forget"} {
				if !strings.Contains(errOut, next) {
					t.Errorf("it does not say %q: %s", next, errOut)
				}
			}
		})
	}
}
