package peering

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestReasonsAreSpelledAsConditionsSpellThem(t *testing.T) {
	for in, want := range map[Reason]string{ReasonPolicyRefused: "PolicyRefused", ReasonInternal: "Internal", "SYNC_2_LOST_": "Sync2Lost", "": ""} {
		if got := in.Condition(); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

func TestRefusalReasonsAsConditions(t *testing.T) {
	t.Parallel()
	for in, want := range map[RefusalReason]string{
		RefusedQuota: "QuotaExceeded", RefusedContract: "ContractClosed", RefusedPodSecurity: "PodSecurity", RefusedNamespace: "NamespaceRefused",
		RefusedInvalid: "ObjectInvalid", RefusedInternal: "ProviderError", "OF_LATER": "Refused", "": "Refused",
	} {
		if got := in.Condition(); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

func TestAsErrorNamesAReasonForEveryError(t *testing.T) {
	own := Errorf(ReasonContractClosed, "it has ended")
	for name, tt := range map[string]struct {
		err  error
		want Reason
	}{
		"no error":                {nil, ""},
		"one of ours":             {own, ReasonContractClosed},
		"one of ours, wrapped":    {fmt.Errorf("sign: %w", own), ReasonContractClosed},
		"a deadline":              {fmt.Errorf("sign: %w", context.DeadlineExceeded), ReasonDeadlineExceeded},
		"a call that was stopped": {context.Canceled, ReasonCanceled},
		"anything else":           {errors.New("broken\x1b[2J"), ReasonUnknown},
	} {
		if got := ReasonOf(tt.err); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	if got := AsError(errors.New("broken\x1b[2J")).Message; got != "broken [2J" {
		t.Errorf("the text is %q", got)
	}
}
