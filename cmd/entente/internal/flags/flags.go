// Package flags has flags that check what they are given as they are parsed.
package flags

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// Duration is a flag with a positive duration; zero if the flag was not given.
type Duration time.Duration

func (p *Duration) String() string {
	if *p == 0 {
		return ""
	}
	return time.Duration(*p).String()
}

// Set implements pflag.Value.
func (p *Duration) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err == nil && d <= 0 {
		err = errors.New("must be positive")
	}
	*p = Duration(d)
	return err
}

// Type implements pflag.Value.
func (*Duration) Type() string { return "duration" }

// Proto is the duration for the API; nil if none was given.
func (p *Duration) Proto() *durationpb.Duration {
	if *p == 0 {
		return nil
	}
	return durationpb.New(time.Duration(*p))
}

// Switch is a flag that is true, false or not given.
type Switch struct {
	// Given is nil if the flag was not given.
	Given *bool
}

// Add adds the flag; its name alone means true.
func (s *Switch) Add(to *pflag.FlagSet, name, usage string) {
	to.VarPF(s, name, "", usage).NoOptDefVal = "true"
}

func (s *Switch) String() string {
	if s.Given == nil {
		return ""
	}
	return strconv.FormatBool(*s.Given)
}

// Set implements pflag.Value.
func (s *Switch) Set(text string) error {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return errors.New("want true or false")
	}
	s.Given = &b
	return nil
}

// Type implements pflag.Value.
func (*Switch) Type() string { return "bool" }

// PeerLost is a flag that says what happens to pods in a provider that does not respond; its
// zero value means that it was not given.
type PeerLost struct {
	action string
	after  Duration
}

// peerLostActions maps the flag's values to those of the API.
func peerLostActions() map[string]string {
	return map[string]string{"keep": "Keep", "evict": "Evict", "fence": "Fence"}
}

func (p *PeerLost) String() string {
	if p.after == 0 {
		return strings.ToLower(p.action)
	}
	return strings.ToLower(p.action) + "=" + p.after.String()
}

// Set implements pflag.Value.
func (p *PeerLost) Set(s string) error {
	word, after, timed := strings.Cut(s, "=")
	got := PeerLost{action: peerLostActions()[word]}
	if got.action == "" || timed && word == "keep" {
		return errors.New("say keep, evict, evict=DURATION, fence or fence=DURATION, as in fence=5m")
	}
	if timed {
		if err := got.after.Set(after); err != nil {
			return err
		}
	}
	if d := time.Duration(got.after); word == "fence" && timed && (d < peering.MinFence || d > peering.MaxFence) {
		return fmt.Errorf("a fence is from %s to %s", peering.MinFence, peering.MaxFence)
	}
	*p = got
	return nil
}

// Type implements pflag.Value.
func (*PeerLost) Type() string { return "choice" }

// Proto is the choice for the API; nil if none was given.
func (p *PeerLost) Proto() *ententev1.PeerLost {
	if p.action == "" {
		return nil
	}
	return &ententev1.PeerLost{Action: p.action, After: p.after.Proto()}
}

// Namespaces is a flag with names of namespaces, which may be repeated: * is all of them, and an empty value none.
type Namespaces struct {
	// List is nil where the flag was not given.
	List *ententev1.NamespaceList
}

func (n *Namespaces) String() string {
	names := make([]string, 0, len(n.List.GetNamespaces()))
	for _, name := range n.List.GetNamespaces() {
		names = append(names, strings.TrimPrefix(name, "namespaces/"))
	}
	return strings.Join(names, ",")
}

// Type implements pflag.Value.
func (*Namespaces) Type() string { return "namespace" }

// Set implements pflag.Value.
func (n *Namespaces) Set(s string) error {
	if n.List == nil {
		n.List = &ententev1.NamespaceList{}
	}
	if s == "" {
		return nil
	}
	for name := range strings.SplitSeq(s, ",") {
		switch {
		case name == "*":
			name = "-"
		case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.Trim(name, "-") != name:
			return fmt.Errorf("%q: want a namespace, * for all, or an empty value for none", name)
		}
		n.List.Namespaces = append(n.List.Namespaces, "namespaces/"+name)
	}
	return nil
}

// Timeout is the flag that limits how long a command waits.
type Timeout struct{ Duration }

// Add adds --timeout with a default.
func (t *Timeout) Add(to *pflag.FlagSet, by time.Duration, usage string) {
	t.Duration = Duration(by)
	to.Var(t, "timeout", usage)
}

// Bound returns a context that ends when the command has waited for long enough.
func (t *Timeout) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Duration(t.Duration))
}

// Money is a flag with an amount as people write it, such as EUR 0.5, or any for no limit.
type Money struct {
	text string
	// Amount is nil where none was given, and for any.
	Amount *ententev1.Money
}

func (m *Money) String() string { return m.text }

// Type implements pflag.Value.
func (*Money) Type() string { return "string" }

// Given reports whether the flag was given.
func (m *Money) Given() bool { return m.text != "" }

// Set implements pflag.Value.
func (m *Money) Set(s string) error {
	m.text, m.Amount = s, nil
	if s == "any" {
		return nil
	}
	words := strings.Fields(s)
	if len(words) != 2 || len(words[0]) != 3 || strings.Trim(words[0], "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return errors.New(`want a currency and an amount, as "EUR 0.5"`)
	}
	amount := words[1]
	if strings.Contains(amount, ".") {
		amount = strings.TrimSuffix(strings.TrimRight(amount, "0"), ".")
	}
	d, err := peering.ParseDecimal(amount)
	m.Amount = &ententev1.Money{Currency: words[0], Amount: d.String()}
	return err
}

// Resources are flags with amounts of resources.
type Resources struct{ amounts map[string]string }

// Add adds --resources, and short flags for the usual ones.
func (r *Resources) Add(to *pflag.FlagSet) {
	to.Var(amount{r, ""}, "resources", "The amount of each resource, as in cpu=4,memory=8Gi,nvidia.com/gpu=1; may be repeated")
	to.Var(amount{r, "cpu"}, "cpu", "How much CPU, such as 4 or 500m: short for --resources cpu=4")
	to.Var(amount{r, "memory"}, "memory", "How much memory, such as 8Gi: short for --resources memory=8Gi")
	to.Var(amount{r, "pods"}, "pods", "How many pods: short for --resources pods=20")
}

// Proto returns the amounts for the API; nil if none was given.
func (r *Resources) Proto() *ententev1.ResourceList {
	if len(r.amounts) == 0 {
		return nil
	}
	return &ententev1.ResourceList{Amounts: r.amounts}
}

// amount is one of the flags: for one resource, or for those that its value names.
type amount struct {
	of   *Resources
	name string
}

func (amount) String() string { return "" }

func (a amount) Type() string {
	if a.name == "" {
		return "strings"
	}
	return "string"
}

func (a amount) Set(s string) error {
	if a.name != "" {
		return a.of.put(a.name, s)
	}
	for part := range strings.SplitSeq(s, ",") {
		name, amount, ok := strings.Cut(part, "=")
		if !ok || name == "" || amount == "" {
			return errors.New("want name=amount, as cpu=4,memory=8Gi")
		}
		if err := a.of.put(name, amount); err != nil {
			return err
		}
	}
	return nil
}

func (r *Resources) put(name, amount string) error {
	if _, twice := r.amounts[name]; twice {
		return fmt.Errorf("%s is given twice", name)
	}
	q, err := peering.ParseQuantity(amount)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if r.amounts == nil {
		r.amounts = map[string]string{}
	}
	r.amounts[name] = q.String()
	return nil
}

// Choice adds a flag that takes one of some values, which the shell offers; by is its
// default.
func Choice(cmd *cobra.Command, to *string, name, short, by, usage string, choices ...string) {
	*to = by
	cmd.Flags().VarP(choice{to, choices}, name, short, usage)
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

type choice struct {
	to      *string
	choices []string
}

func (c choice) String() string {
	if c.to == nil {
		return ""
	}
	return *c.to
}

func (choice) Type() string { return "string" }

func (c choice) Set(s string) error {
	if !slices.Contains(c.choices, s) {
		return fmt.Errorf("want one of %s", strings.Join(c.choices, ", "))
	}
	*c.to = s
	return nil
}
