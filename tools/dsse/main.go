// Command dsse verifies a contract of Entente with a DSSE implementation of
// others, and nothing of Entente: it shows that whoever holds a contract and knows
// the two cluster IDs needs neither the clusters nor this project to check it. It
// is a module of its own, so that it stays so.
package main

import (
	"context"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: dsse CONTRACT CONSUMER-ID PROVIDER-ID")
		os.Exit(2)
	}
	contract, err := os.ReadFile(os.Args[1])
	if err == nil {
		contract, err = verify(context.Background(), contract, os.Args[2], os.Args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "NOT valid:", err)
		os.Exit(1)
	}
	fmt.Println(string(contract))
}
