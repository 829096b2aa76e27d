from soak.driver import main

if __name__ == "__main__":
    main()
