package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// TestBadTokensAreRefused redeems bad tokens with the CLI.
func TestBadTokensAreRefused(t *testing.T) {
	ctx, w := theStage.On(t)
	OK(t, w.Unpeer(ctx))
	good, err := w.Abroad.CreateToken(ctx)
	OK(t, err)
	expired, err := w.Abroad.CreateToken(ctx, "--ttl", "1s")
	OK(t, err)
	expires := time.Now().Add(2 * time.Second)
	own, err := w.Home.CreateToken(ctx)
	OK(t, err)
	other, used := newStranger(ctx, t, w, "naples")
	OK(t, other.join(ctx, used))
	t.Cleanup(func() { other.forget(t) })
	usedText, err := used.Encode()
	OK(t, err)

	changed := func(change func(*jointoken.Token)) string {
		token, err := jointoken.Parse(good)
		OK(t, err)
		change(&token)
		text, err := token.Encode()
		OK(t, err)
		return text
	}
	flipped := []byte(good)
	if flipped[40]++; flipped[40] > 'z' {
		flipped[40] = 'a'
	}
	tests := []struct {
		name, token string
		words       []string
	}{
		{"a token that is cut off", good[:len(good)-6], []string{"TOKEN_MALFORMED", "cut off"}},
		{"a token of which only the beginning was copied", good[:30], []string{"TOKEN_MALFORMED", "cut off"}},
		{"a token with a wrong character", string(flipped), []string{"TOKEN_MALFORMED"}},
		{"something else", "hello", []string{"TOKEN_MALFORMED"}},
		{"a token of a later version", "ent9." + strings.TrimPrefix(good, "ent1."), []string{"TOKEN_MALFORMED", "version"}},
		{"a token with another secret", changed(func(token *jointoken.Token) { token.Secret[0]++ }), []string{"TOKEN_INVALID"}},
		{"a token with an ID that was never made", changed(func(token *jointoken.Token) { token.ID = "abcdefgh22" }), []string{"TOKEN_INVALID"}},
		{
			"a token that pins another cluster's key", changed(func(token *jointoken.Token) { token.Issuer = other.identity.ID() }),
			[]string{"PEER_IDENTITY_MISMATCH", string(used.Issuer), string(other.identity.ID())},
		},
		{
			"a token that leads nowhere", changed(func(token *jointoken.Token) { token.Endpoints = []string{"172.30.2.11:30744"} }),
			[]string{"PEER_UNREACHABLE", "172.30.2.11:30744"},
		},
		{"a token that another cluster used", usedText, []string{"TOKEN_INVALID", "redeemed by another cluster"}},
		{"a token of the cluster itself", own, []string{"PEER_IS_SELF"}},
		{"a token that expired", expired, []string{"EXPIRED", "expired"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.token == expired {
				time.Sleep(time.Until(expires))
			}
			_, err := w.Home.Entente(ctx, "join", test.token)
			OK(t, Ended(err, test.words...))
			if failed := err.(*CommandError); failed.Code != 1 { //nolint:errorlint // Ended looked
				t.Errorf("exit code is %d, want 1", failed.Code)
			}
			if strings.Contains(err.(*CommandError).Output, test.token) { //nolint:errorlint // as above
				t.Error("the message repeats the token")
			}
		})
	}
	peer, err := w.Home.Peer(ctx)
	OK(t, err)
	if peer != nil {
		t.Errorf("%s trusts %s by one of these tokens", w.Home.Name, peer.Name)
	}
	// The good one was not used up by all this.
	if _, err := w.Home.Entente(ctx, "join", good); err != nil {
		t.Errorf("the good token does not work any more: %v", err)
	}
}

// TestTokenIsRedeemedOnce lets several clusters redeem a token at once.
func TestTokenIsRedeemedOnce(t *testing.T) {
	ctx, w := theStage.On(t)
	const redeemers = 6
	var all []*stranger
	first, token := newStranger(ctx, t, w, "one")
	all = append(all, first)
	for len(all) < redeemers {
		next, _ := newStranger(ctx, t, w, "")
		all = append(all, next)
	}
	results := make(chan error, redeemers)
	for _, s := range all {
		go func() { results <- s.join(ctx, token) }()
		t.Cleanup(func() { s.forget(t) })
	}
	joined := 0
	for range all {
		switch err := <-results; {
		case err == nil:
			joined++
		default:
			wantReason(t, err, peering.ReasonTokenInvalid)
		}
	}
	if joined != 1 {
		t.Errorf("%d of %d clusters joined by one token, want one", joined, redeemers)
	}
}

// TestStrangersMayOnlyJoin calls what only peers may call.
func TestStrangersMayOnlyJoin(t *testing.T) {
	ctx, w := theStage.On(t)
	s, _ := newStranger(ctx, t, w, "nobody")
	ctx, cancel := context.WithTimeout(ctx, Soon)
	defer cancel()
	peer := client.Peering{Conn: s.dial(t)}
	_, err := peer.Request(ctx, peering.Ask{RequestID: "give-me"})
	wantReason(t, err, peering.ReasonPeerNotTrusted)
	_, err = peer.Sign(ctx, peering.Envelope{Payload: []byte("{}"), PayloadType: peering.PayloadType})
	wantReason(t, err, peering.ReasonPeerNotTrusted)
	wantReason(t, peer.Terminate(ctx, "c-1", "", time.Time{}), peering.ReasonPeerNotTrusted)

	_, err = w.Home.Entente(ctx, "peer", "atlantis")
	OK(t, Ended(err, "PEER_UNKNOWN", "atlantis"))
	_, err = w.Home.Entente(ctx, "info", "peer", "atlantis")
	OK(t, Ended(err, "PEER_UNKNOWN", "atlantis"))
}
