package flags

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestDurationsArePositive(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "24h": 24 * time.Hour, "0s": 0, "-1s": 0, "": 0, "1d": 0, "10": 0} {
		var d Duration
		if err := d.Set(text); (err == nil) != (want > 0) || err == nil && time.Duration(d) != want {
			t.Errorf("%q is %s, %v", text, time.Duration(d), err)
		}
	}
	var unset Duration
	if unset.Proto() != nil || unset.String() != "" {
		t.Errorf("a flag that was not given is %v", unset.Proto())
	}
}

func TestNamespacesAreNamesOrAllOrNone(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"shop": "shop", "shop bank": "shop,bank", "shop,bank": "shop,bank", "*": "-", "": "", " shop": "shop", "Shop": "error", "a,,b": "error", "shop/x": "error", "-": "error", "shop *": "shop,-",
	} {
		var n Namespaces
		if n.List != nil {
			t.Fatal("a flag that was not given lists namespaces")
		}
		var err error
		for word := range strings.SplitSeq(text, " ") {
			err = errors.Join(err, n.Set(word))
		}
		if want == "error" {
			if err == nil {
				t.Errorf("%q is accepted: %s", text, n.String())
			}
			continue
		}
		if err != nil || n.List == nil || n.String() != want {
			t.Errorf("%q is %q, %v; want %q", text, n.String(), err, want)
		}
	}
}

func TestPeerLostIsAnActionAndATime(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"keep": "Keep 0s", "evict": "Evict 0s", "evict=10s": "Evict 10s", "fence": "Fence 0s", "fence=3m": "Fence 3m0s", "fence=24h": "Fence 24h0m0s",
		"": "", "Keep": "", "keep=5m": "", "keep=": "", "evict=": "", "evict=0s": "", "evict=-1m": "", "fence=2m59s": "", "fence=25h": "", "fence=5": "", "drop": "", "=5m": "",
	} {
		var p PeerLost
		err := p.Set(text)
		got := ""
		if m := p.Proto(); m != nil {
			got = m.GetAction() + " " + m.GetAfter().AsDuration().String()
		}
		if (err == nil) != (want != "") || got != want {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
		var again PeerLost
		if err == nil && (again.Set(p.String()) != nil || again != p) {
			t.Errorf("%q is written as %q", text, p.String())
		}
	}
}

func TestMoneyIsACurrencyAndAnAmount(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"EUR 0.5": "EUR 0.5", "EUR 0.50": "EUR 0.5", "EUR 100": "EUR 100", "EUR 100.00": "EUR 100", " USD  1 ": "USD 1", "any": "any",
		"0.5 EUR": "", "eur 1": "", "EURO 1": "", "EUR": "", "EUR -1": "", "EUR .": "", "EUR 0.0000000001": "", "EUR 1,5": "", "": "",
	} {
		var m Money
		err := m.Set(text)
		got := ""
		switch {
		case err == nil && m.Amount == nil:
			got = "any"
		case err == nil:
			got = m.Amount.GetCurrency() + " " + m.Amount.GetAmount()
		}
		if got != want {
			t.Errorf("%q is %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestResourcesAreGivenOnce(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]map[string]string{
		"":                                    nil,
		"--cpu 4 --memory 8192Mi --pods 20":   {"cpu": "4", "memory": "8Gi", "pods": "20"},
		"--resources cpu=500m,memory=1Gi":     {"cpu": "500m", "memory": "1Gi"},
		"--resources cpu=1 --resources gpu=2": {"cpu": "1", "gpu": "2"},
		"--resources a.b/c=1":                 {"a.b/c": "1"},
	} {
		var r Resources
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		r.Add(flags)
		if err := flags.Parse(strings.Fields(args)); err != nil {
			t.Errorf("%s: %v", args, err)
		}
		if diff := cmp.Diff(want, r.Proto().GetAmounts()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", args, diff)
		}
	}
	for args, want := range map[string]string{
		"--cpu 1 --resources cpu=2": "cpu is given twice",
		"--resources cpu=1,cpu=1":   "cpu is given twice",
		"--resources cpu":           "want name=amount",
		"--resources =1":            "want name=amount",
		"--resources cpu=":          "want name=amount",
		"--resources cpu=1,":        "want name=amount",
		"--memory much":             "memory: ",
	} {
		var r Resources
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		r.Add(flags)
		if err := flags.Parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestASwitchMayBeLeftOut(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"": "", "--move": "true", "--move=true": "true", "--move=false": "false"} {
		var move Switch
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		move.Add(flags, "move", "")
		if err := flags.Parse(strings.Fields(args)); err != nil || move.String() != want || (move.Given == nil) != (want == "") {
			t.Errorf("%q: %v, %v, want %q", args, move.Given, err, want)
		}
	}
	var move Switch
	if err := move.Set("perhaps"); err == nil || move.Given != nil {
		t.Errorf("perhaps: %v, %v", err, move.Given)
	}
}

func TestChoicesAreLimitedToTheListedValues(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"": "a", "--way b": "b", "-w a": "a", "--way c": "", "--way=": ""} {
		cmd := &cobra.Command{}
		var way string
		Choice(cmd, &way, "way", "w", "a", "which way", "a", "b")
		err := cmd.Flags().Parse(strings.Fields(args))
		if (err == nil) != (want != "") || err == nil && way != want || err != nil && (way != "a" || !strings.Contains(err.Error(), "want one of a, b")) {
			t.Errorf("%s: %q, %v, want %q", args, way, err, want)
		}
	}
}
