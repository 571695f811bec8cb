from vitshap.cli import main

main()
